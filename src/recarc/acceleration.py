"""Ensembles that search faster: batch norm folded, channels_last, TF32 or bfloat16, compiled, in tiles of few sizes.

For the search of an attack only: what it finds is judged with the original members in float32.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble
from recarc.errors import InputError, unknown
from recarc.models.folding import fold_batch_norm

PRECISIONS = ("float32", "tf32", "bfloat16")
TILE = {"cuda": 1024, "cpu": 256}  # images at once: fills an H200, and a layer's activations stay in its cache
STEPS_OF_TILE = 4  # the last tile is padded to a multiple of a quarter, so that few sizes occur
WORTH_COMPILING = {"cuda": 20_000_000, "cpu": 50_000}  # images through a member, above which a minute pays off
CHANNELS = {"float32": 4, "tf32": 4, "bfloat16": 8}  # 16 bytes a pixel, what matrix units read at once
WARMUP = 3  # passes before capture: libraries choose their kernels and allocate their workspaces
AGREEMENT = 0.02  # relative difference of a captured pass from a plain one; rounding stays far below


@dataclass(frozen=True)
class Settings:
    """How members are run. `precision` is that of gradients; predictions are never made in less than TF32."""

    precision: str = "float32"
    compile: bool = False
    graphs: bool = False
    tile: int = 256
    one_size: bool = False
    pad: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.tile < 1:
            raise InputError(f"tile is {self.tile!r}; it must be a whole number of at least 1")


def accelerate(
    ensemble: RandomizedEnsemble | Member,
    precision: str = "float32",
    *,
    compile: bool | None = None,
    graphs: bool = False,
    tile: int | None = None,
    one_size: bool = False,
    pad: bool = False,
    work: int = 0,
) -> RandomizedEnsemble:
    """A copy of the ensemble to search with: the same functions up to rounding, several times faster.

    `compile`: None decides by `work`, the number of images that will pass through each member. `graphs` captures
    each tile as CUDA graphs (small tiles only). With `one_size` every tile is padded to the full size, so that a
    sample's figures do not depend on the rest of its batch. `pad` fills the channels of images up to what matrix
    units are made for. Callables that are no modules are used as they are.
    """
    ensemble = as_ensemble(ensemble)
    device = ensemble.device_of_members() or torch.device("cpu")
    kind = device.type if device.type in TILE else "cpu"
    settings = Settings(
        precision,
        compile=work >= WORTH_COMPILING[kind] if compile is None else compile,
        graphs=graphs and kind == "cuda",
        tile=TILE[kind] if tile is None else tile,
        one_size=one_size,
        pad=pad,
    )
    if settings.compile:
        _prepare_compiler()
    members = [FastMember(m, settings) if isinstance(m, nn.Module) else m for m in ensemble.members]
    fast = RandomizedEnsemble(members, ensemble.alpha)
    fast.alpha = ensemble.alpha  # to the last bit, not normalised a second time
    return fast


class FastMember(nn.Module):
    """One member with its batch norms folded; logits and input gradients in the dtype of the input.

    Gradients flow to the input only. They may be taken several times, but on a captured member not after its next
    forward pass.
    """

    def __init__(self, member: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        folded = _folded(member)
        own = next((p.dtype for p in folded.parameters() if p.is_floating_point()), None)
        self.dtype = own if settings.precision == "float32" else torch.float32
        self.search = _body(folded, settings.precision, settings.pad)
        self.score = self.search if settings.precision != "bfloat16" else _body(folded, "tf32", settings.pad)
        self._search_call = _Call(self.search, settings.precision, settings.compile)
        self._score_call = _Call(self.score, _scoring(settings.precision), settings.compile)
        self._slots: dict[tuple[Any, ...], _Slot] = {}
        self.capturing = settings.graphs
        self.ticket = 0

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return self.score(x.to(self.dtype)).to(x.dtype)
        if torch.is_grad_enabled() and x.requires_grad:
            return _Differentiable.apply(x, self)
        with torch.no_grad():
            tiles = [self._scored(part)[: len(part)].to(x.dtype, copy=True) for _, part in self._parts(x)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles)

    def _parts(self, x: Tensor) -> list[tuple[int, Tensor]]:
        return list(enumerate(x.split(self.settings.tile)))

    def _padded(self, part: Tensor) -> Tensor:
        """Filled up to one of few sizes: CUDA libraries choose, and graphs fix, their kernels by size."""
        unit = self.settings.tile
        if not self.settings.one_size:
            unit = max(1, unit // STEPS_OF_TILE) if part.device.type == "cuda" else 1
        missing = -len(part) % unit
        part = part.to(self.dtype)
        return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part

    def _scored(self, part: Tensor) -> Tensor:
        x = self._padded(part)
        if self.capturing:
            slot = self._slot(("score", *x.shape), self._score_call, x, gradient=False)
            if slot is not None:
                return slot.forward(x)
        return self._score_call(_laid_out(x))

    def differentiable(self, part: Tensor, place: int) -> _Tile | _Slot:
        """The forward pass of one tile, ready to be pulled back."""
        x = self._padded(part)
        if self.capturing:
            slot = self._slot(("search", place, *x.shape), self._search_call, x, gradient=True)
            if slot is not None:
                slot.forward(x)
                return slot
        leaf = _laid_out(x).detach().requires_grad_()
        with torch.enable_grad():
            return _Tile(leaf, self._search_call(leaf), self._search_call)

    def _slot(self, key: tuple[Any, ...], call: _Call, x: Tensor, gradient: bool) -> _Slot | None:
        if key not in self._slots:
            try:
                self._slots[key] = _Slot(call, x, gradient)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # capture fails in as many ways as there are kernels
                warnings.warn(f"running without CUDA graphs: {_first_line(error)}", stacklevel=2)
                self.capturing = False
                return None
        return self._slots[key]


class _Differentiable(torch.autograd.Function):
    """Tiles as one differentiable function; each keeps its own graph, pulled back under the member's settings."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, member: FastMember) -> Tensor:
        member.ticket += 1
        parts = member._parts(x)
        ctx.tiles = [member.differentiable(part, place) for place, part in parts]
        ctx.sizes = [len(part) for _, part in parts]
        ctx.member, ctx.ticket = member, member.ticket
        ctx.like = x.detach()
        return torch.cat([t.logits.detach()[:n].to(x.dtype) for t, n in zip(ctx.tiles, ctx.sizes)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.member.capturing and ctx.ticket != ctx.member.ticket:
            raise RuntimeError("a captured member was run again before its gradient was taken; use graphs=False")
        result = torch.empty_like(ctx.like)
        for tile, part, place in zip(ctx.tiles, gradient.split(ctx.sizes), result.split(ctx.sizes)):
            place.copy_(tile.pull_back(part)[: len(part)])
        return result, None


class _Call:
    """A body under its precision, compiled on first use where asked; falls back to plain execution."""

    def __init__(self, body: nn.Module, precision: str, compile: bool) -> None:
        self.body, self.precision = body, precision
        self.compiled: Callable[[Tensor], Tensor] | None = torch.compile(body) if compile else None

    def __call__(self, x: Tensor) -> Tensor:
        with running(self.precision, x.device):
            if self.compiled is None:
                return self.body(x)
            try:
                torch._dynamo.maybe_mark_dynamic(x, 0)
                return self.compiled(x)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # the compiler raises whatever its backends raise
                warnings.warn(f"running uncompiled: {_first_line(error)}", stacklevel=2)
                self.compiled = None
                return self.body(x.detach().requires_grad_(x.requires_grad))

    def pull_back(self, logits: Tensor, leaf: Tensor, gradient: Tensor) -> Tensor:
        with running(self.precision, leaf.device):
            return torch.autograd.grad(logits, leaf, gradient, retain_graph=True)[0]


@dataclass
class _Tile:
    leaf: Tensor
    logits: Tensor
    call: _Call

    def pull_back(self, gradient: Tensor) -> Tensor:
        return self.call.pull_back(self.logits, self.leaf, _filled(gradient, self.logits))


class _Slot:
    """Forward and backward pass of one tile as CUDA graphs over buffers of their own, checked before use.

    Each has a memory pool of its own: its activations outlive the forward passes of other tiles.
    """

    def __init__(self, call: _Call, x: Tensor, gradient: bool) -> None:
        self.x = _laid_out(x).detach().clone(memory_format=torch.preserve_format).requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            expected = self._rehearse(call, gradient)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = call(self.x)
        self.back: torch.cuda.CUDAGraph | None = None
        if gradient:
            self.cotangent = torch.ones_like(self.logits)
            self.back = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.back, pool=self.graph.pool()):
                self.pulled = call.pull_back(self.logits, self.x, self.cotangent)
        self._check(expected)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.x.copy_(x)
        self.graph.replay()
        return self.logits.detach()

    def pull_back(self, gradient: Tensor) -> Tensor:
        assert self.back is not None
        self.cotangent.copy_(_filled(gradient, self.logits))
        self.back.replay()
        return self.pulled

    def _rehearse(self, call: _Call, gradient: bool) -> Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                found = call(self.x)
                if gradient:
                    found = call.pull_back(found, self.x, torch.ones_like(found))
        torch.cuda.current_stream().wait_stream(stream)
        return found.detach().clone()

    def _check(self, expected: Tensor) -> None:
        found = self.forward(self.x.detach().clone())
        if self.back is not None:
            found = self.pull_back(torch.ones_like(self.logits))
        distance = (found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-12)
        if not float(distance) <= AGREEMENT:
            raise RuntimeError(f"a captured pass differs from a plain one by {float(distance):.2g}")


@contextmanager
def running(precision: str, device: torch.device) -> Iterator[None]:
    """The precision of kernels inside; the settings are put back at the end."""
    with ExitStack() as stack:
        if precision == "bfloat16":
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        if device.type == "cuda":
            stack.enter_context(_kernels(tf32=precision != "float32"))
        yield


@contextmanager
def _kernels(tf32: bool) -> Iterator[None]:
    """TF32 or not, and the fastest kernels by trial unless the caller wants deterministic ones."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, torch.get_float32_matmul_precision()
    cudnn.allow_tf32, cudnn.benchmark = tf32, not cudnn.deterministic
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before[:2]
        torch.set_float32_matmul_precision(before[2])


def _scoring(precision: str) -> str:
    return "tf32" if precision == "bfloat16" else precision


def _folded(member: nn.Module) -> nn.Module:
    """An evaluation copy, folded where it can be traced; no gradients to weights."""
    try:
        folded = fold_batch_norm(member)
    except InputError:
        folded = copy.deepcopy(member).eval()
    return folded.requires_grad_(False)


class _PaddedConv(nn.Module):
    """A convolution of few channels as one of `channels`, the new ones zero."""

    def __init__(self, conv: nn.Conv2d, channels: int) -> None:
        super().__init__()
        self.missing = channels - conv.in_channels
        self.conv = copy.deepcopy(conv)
        self.conv.in_channels = channels
        weight = F.pad(conv.weight.detach(), (0, 0, 0, 0, 0, self.missing))
        self.conv.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 0, 0, 0, 0, self.missing)))


def _padded_convolutions(body: nn.Module, channels: int) -> None:
    for name, conv in list(body.named_modules()):
        if isinstance(conv, nn.Conv2d) and conv.in_channels < channels and conv.groups == 1:
            body.set_submodule(name, _PaddedConv(conv, channels))


def _body(folded: nn.Module, precision: str, pad: bool) -> nn.Module:
    body = copy.deepcopy(folded) if precision == "float32" else copy.deepcopy(folded).float()
    if pad and not isinstance(body, nn.Conv2d):
        _padded_convolutions(body, CHANNELS[precision])
    if any(p.dim() == 4 for p in body.parameters()):
        body = body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if precision == "bfloat16":
        for module in body.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(torch.bfloat16)
    return body


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _filled(gradient: Tensor, like: Tensor) -> Tensor:
    """The cotangent of a padded tile: zero on the padding."""
    gradient = gradient.to(like.dtype)
    missing = len(like) - len(gradient)
    return torch.cat([gradient, gradient.new_zeros(missing, *gradient.shape[1:])]) if missing else gradient


def _prepare_compiler() -> None:
    """Several backward passes through one graph, and one variant each for members, precisions and modes."""
    import torch._dynamo
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), 64))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
