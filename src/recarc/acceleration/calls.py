"""A body called under its precision, compiled where asked, and pulled back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recarc.acceleration.precision import running
from recarc.errors import first_line

HEADROOM = 64.0  # what a sample's cotangent is scaled to in float16: its small entries stay above 6e-8


class Call:
    """A body under its precision, compiled on first use where asked; falls back to plain execution."""

    def __init__(self, body: nn.Module, precision: str, compile: bool) -> None:
        self.body, self.precision = body, precision
        self.compiled: Callable[[Tensor], Tensor] | None = torch.compile(body) if compile else None

    def __call__(self, x: Tensor) -> Tensor:
        """Logits in the precision that comes out; never float16, in which they would tie."""
        with running(self.precision, x.device):
            logits = self._run(x)
        return logits.float() if logits.dtype == torch.float16 else logits

    def _run(self, x: Tensor) -> Tensor:
        if self.compiled is None:
            return self.body(x)
        try:
            torch._dynamo.maybe_mark_dynamic(x, 0)
            return self.compiled(x)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler raises whatever its backends raise
            warnings.warn(f"running uncompiled: {first_line(error)}", stacklevel=2)
            self.compiled = None
            return self.body(x.detach().requires_grad_(x.requires_grad))

    def pull_back(self, logits: Tensor, leaf: Tensor, gradient: Tensor) -> Tensor:
        with running(self.precision, leaf.device):
            if self.precision != "float16":
                return torch.autograd.grad(logits, leaf, gradient, retain_graph=True)[0]
            # Per sample, since a loss that is nearly zero has a gradient below what float16 can hold.
            size = (gradient.abs().amax(1, keepdim=True) / HEADROOM).clamp(min=torch.finfo(gradient.dtype).tiny)
            pulled = torch.autograd.grad(logits, leaf, gradient / size, retain_graph=True)[0]
            return pulled * size.view(-1, *(1,) * (pulled.dim() - 1))


@dataclass
class Tile:
    leaf: Tensor
    logits: Tensor
    call: Call

    def pull_back(self, gradient: Tensor) -> Tensor:
        return self.call.pull_back(self.logits, self.leaf, filled(gradient, self.logits))


def laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def filled(gradient: Tensor, like: Tensor) -> Tensor:
    """The cotangent of a padded tile: zero on the padding."""
    gradient = gradient.to(like.dtype)
    missing = len(like) - len(gradient)
    return torch.cat([gradient, gradient.new_zeros(missing, *gradient.shape[1:])]) if missing else gradient


def prepare_compiler() -> None:
    """Several backward passes through one graph, and one variant each for members, precisions and modes."""
    import torch._dynamo
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), 64))
