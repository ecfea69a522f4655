"""`accelerate` and the members it makes: called in tiles of few sizes, each captured or compiled where that pays."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble
from recarc.errors import InputError, first_line
from recarc.fast.convert import any_size, body_of, folded_copy
from recarc.fast.execute import Call, Slot, Tile, laid_out, prepare_compiler
from recarc.fast.fuse import Run
from recarc.runtime import COARSE, check_precision

TILE = {"cuda": 1024, "cpu": 256}  # images at once: fills an H200, and a layer's activations stay in its cache
SMALL_TILE = 32  # captured tiles have 32, 64, ... images
FEW, AGREEMENT = 64, 0.05  # images on which fused logits are compared with plain ones, and what rounding may cause
STEPS_OF_TILE = 4  # other tiles are padded to a multiple of a quarter on a GPU, so that few sizes occur


@dataclass(frozen=True)
class Settings:
    """How members are run. `precision` is that of gradients; predictions round no coarser than TF32 or float16 do."""

    precision: str = "float32"
    compile: bool = False
    graphs: bool | None = None
    tile: int | None = None
    one_size: bool = False

    def __post_init__(self) -> None:
        if self.tile is not None and self.tile < 1:
            raise InputError(f"tile is {self.tile!r}; it must be a whole number of at least 1")


def accelerate(
    ensemble: RandomizedEnsemble | Member,
    precision: str = "float32",
    *,
    compile: bool = False,
    graphs: bool | None = None,
    tile: int | None = None,
    one_size: bool = False,
) -> RandomizedEnsemble:
    """A copy of the ensemble to search with: the same functions up to rounding, several times faster.

    "float16" rounds like TF32 (10 bits) in half the memory, on a GPU with kernels of our own for few channels.
    `compile` takes a while before it pays: for long runs. `graphs` captures each tile as CUDA graphs; None: where every
    convolution is fused, so that a size costs little to capture. With `one_size` every tile is padded to the full
    size, so that a sample's figures do not depend on the rest of its batch. Callables that are no modules are used as
    they are.
    """
    ensemble = as_ensemble(ensemble)
    device = ensemble.device_of_members() or torch.device("cpu")
    check_precision(precision, device, ("float32", *COARSE))
    settings = Settings(precision, compile, graphs if device.type == "cuda" else False, tile, one_size)
    if settings.compile:
        prepare_compiler()
    members = [FastMember(m, settings) if isinstance(m, nn.Module) else m for m in ensemble.members]
    return ensemble.with_members(members)


class FastMember(nn.Module):
    """One member with its batch norms folded; logits and input gradients in the dtype of the input.

    Gradients flow to the input only, and may be taken several times.
    """

    def __init__(self, member: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.folded = folded_copy(member)
        own = next((p.dtype for p in self.folded.parameters() if p.is_floating_point()), None)
        self.dtype = own if settings.precision == "float32" else torch.float32
        self._slots: dict[tuple[Any, ...], Slot] = {}
        self.ticket = 0
        self._take(body_of(self.folded, settings.precision))
        self.unchecked = any(isinstance(m, Run) for m in self.search.modules())

    def _take(self, body: nn.Module) -> None:
        settings = self.settings
        self.search = body
        self.score = body if settings.precision != "bfloat16" else body_of(self.folded, "tf32")
        self._search_call = Call(self.search, settings.precision, settings.compile)
        scoring = "tf32" if settings.precision == "bfloat16" else settings.precision
        self._score_call = Call(self.score, scoring, settings.compile)
        self.any_size = any_size(self.search)
        self.capturing = self.any_size if settings.graphs is None else settings.graphs

    def _check_fused(self, x: Tensor) -> None:
        """On the first images that come: a member that does more than its trace shows is run unfused."""
        part = laid_out(x[:FEW].detach().to(self.dtype))
        with torch.no_grad():
            expected = self.folded.float()(part)
            trouble = self._trouble(part, expected)
        self.unchecked = False
        if trouble:
            warnings.warn(f"running without fused convolutions: {trouble}", stacklevel=2)
            self._take(body_of(self.folded, self.settings.precision, fuse=False))

    def _trouble(self, part: Tensor, expected: Tensor) -> str:
        """What is wrong with the fused logits; empty if nothing is."""
        try:
            found = self._search_call(part)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # such as a sum whose smaller part is the convolution
            return first_line(error)
        far = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
        return "" if far <= AGREEMENT else f"logits differ by {far:.2g} of their size"

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return self(x.new_zeros(1, *x.shape[1:]))[:0] + 0 * x.flatten(1).sum(1, keepdim=True)
        if self.unchecked:
            self._check_fused(x)
        if torch.is_grad_enabled() and x.requires_grad:
            return _Differentiable.apply(x, self)
        with torch.no_grad(), torch.cuda.device_of(x):
            tiles = [self._scored(part)[: len(part)].to(x.dtype, copy=True) for _, part in self._parts(x)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles)

    def _tile(self, x: Tensor) -> int:
        return self.settings.tile or TILE.get(x.device.type, TILE["cpu"])

    def _parts(self, x: Tensor) -> list[tuple[int, Tensor]]:
        return list(enumerate(x.split(self._tile(x))))

    def _padded(self, part: Tensor) -> Tensor:
        """Filled up to one of few sizes: CUDA libraries choose, and graphs fix, their kernels by size."""
        tile = self._tile(part)
        if self.settings.one_size:
            missing = tile - len(part)
        elif self.capturing:
            missing = min(tile, max(SMALL_TILE, 1 << (len(part) - 1).bit_length())) - len(part)
        elif part.device.type == "cuda" and not self.any_size:
            missing = -len(part) % max(1, tile // STEPS_OF_TILE)
        else:
            missing = 0
        part = part.to(self.dtype)
        return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part

    def _scored(self, part: Tensor) -> Tensor:
        x = self._padded(part)
        if self.capturing:
            slot = self._slot(("score", *x.shape), self._score_call, x, gradient=False)
            if slot is not None:
                return slot.forward(x)
        return self._score_call(laid_out(x))

    def differentiable(self, part: Tensor, place: int) -> Tile | Slot:
        """The forward pass of one tile, ready to be pulled back."""
        x = self._padded(part)
        if self.capturing:
            slot = self._slot(("search", place, *x.shape), self._search_call, x, gradient=True)
            if slot is not None:
                slot.forward(x)
                return slot
        leaf = laid_out(x).detach().requires_grad_()
        with torch.enable_grad():
            return Tile(leaf, self._search_call(leaf), self._search_call)

    def _slot(self, key: tuple[Any, ...], call: Call, x: Tensor, gradient: bool) -> Slot | None:
        if key not in self._slots:
            try:
                self._slots[key] = Slot(call, x, gradient)
            except Exception as error:  # capture fails in as many ways as there are kernels, and needs memory
                warnings.warn(f"running without CUDA graphs: {first_line(error)}", stacklevel=2)
                self.capturing = False
                self._slots.clear()
                return None
        return self._slots[key]


class _Differentiable(torch.autograd.Function):
    """Tiles as one differentiable function; each keeps its own graph, pulled back under the member's settings."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, member: FastMember) -> Tensor:
        member.ticket += 1
        parts = member._parts(x)
        with torch.cuda.device_of(x):
            ctx.tiles = [member.differentiable(part, place) for place, part in parts]
        ctx.sizes = [len(part) for _, part in parts]
        ctx.member, ctx.ticket = member, member.ticket
        ctx.like = x.detach()
        return torch.cat([t.logits.detach()[:n].to(x.dtype) for t, n in zip(ctx.tiles, ctx.sizes)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch.cuda.device_of(gradient):
            return _pulled(ctx, gradient), None


def _pulled(ctx: Any, gradient: Tensor) -> Tensor:
    member = ctx.member
    if ctx.ticket != member.ticket and any(isinstance(tile, Slot) for tile in ctx.tiles):
        # The member ran again since, over the same buffers.
        member.ticket += 1
        ctx.ticket = member.ticket
        ctx.tiles = [member.differentiable(part, place) for place, part in member._parts(ctx.like)]
    result = torch.empty_like(ctx.like)
    for tile, part, place in zip(ctx.tiles, gradient.split(ctx.sizes), result.split(ctx.sizes)):
        place.copy_(tile.pull_back(part)[: len(part)])
    return result
