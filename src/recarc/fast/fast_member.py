"""`accelerate` and the members it makes: called in tiles of a few sizes, each captured or compiled where that pays."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble
from recarc.errors import InputError, first_line
from recarc.fast.convert import folded_copy, in_search_precision, is_fully_fused, is_fused
from recarc.fast.execute import CapturedTile, Executor, PlainTile, channels_last
from recarc.runtime import COARSE, TILE, check_precision

SMALLEST_CAPTURE = 32  # captured tiles have 32, 64, ... images
CHECKED_IMAGES, AGREEMENT = 64, 0.05  # fused logits are compared with plain ones; the difference that rounding allows
SIZES_PER_TILE = 4  # other tiles are padded to a multiple of a quarter on a GPU, so that few sizes occur


@dataclass(frozen=True)
class FastSettings:
    """How members are run. `precision` is that of gradients; predictions round no coarser than TF32 or float16."""

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

    "float16" rounds like TF32 (10 bits) in half the memory; on a GPU it runs our own kernels for few channels.
    `compile` takes a while before it pays off: use it for long runs. `graphs` captures each tile as CUDA graphs; None
    does so where every convolution is fused, so that capturing another size costs little. With `one_size` every tile
    is padded to the full size, so that a sample's figures do not depend on the rest of its batch. Callables that are
    not modules are used unchanged.
    """
    ensemble = as_ensemble(ensemble)
    device = ensemble.device_of_members() or torch.device("cpu")
    check_precision(precision, device, ("float32", *COARSE))
    settings = FastSettings(precision, compile, graphs if device.type == "cuda" else False, tile, one_size)
    members = [FastMember(m, settings) if isinstance(m, nn.Module) else m for m in ensemble.members]
    return ensemble.with_members(members)


class FastMember(nn.Module):
    """One member with its batch norms folded; logits and input gradients in the dtype of the input.

    Gradients flow to the input only, and may be taken several times.
    """

    def __init__(self, member: nn.Module, settings: FastSettings) -> None:
        super().__init__()
        self.settings = settings
        self.folded = folded_copy(member)
        own = next((p.dtype for p in self.folded.parameters() if p.is_floating_point()), None)
        self.dtype = own if settings.precision == "float32" else torch.float32
        self.passes = 0  # differentiable forward passes so far: a captured tile holds the activations of the last one
        self._captured: dict[tuple[Any, ...], CapturedTile] = {}
        self._run_with(in_search_precision(self.folded, settings.precision))
        self.fusion_unchecked = is_fused(self.search_net)

    def _run_with(self, net: nn.Module) -> None:
        """Search with this network; predict with it too, unless its precision is too coarse for predictions."""
        settings = self.settings
        score_precision = "tf32" if settings.precision == "bfloat16" else settings.precision
        self.search_net = net
        self.score_net = net if settings.precision != "bfloat16" else in_search_precision(self.folded, "tf32")
        self._search = Executor(self.search_net, settings.precision, settings.compile)
        self._score = Executor(self.score_net, score_precision, settings.compile)
        self.any_size = is_fully_fused(self.search_net)
        self.capturing = self.any_size if settings.graphs is None else settings.graphs

    def _check_fusion(self, x: Tensor) -> None:
        """On the first images: a member that does more than its trace shows is run unfused."""
        images = channels_last(x[:CHECKED_IMAGES].detach().to(self.dtype))
        with torch.no_grad():
            expected = self.folded.float()(images)
            problem = self._fusion_problem(images, expected)
        self.fusion_unchecked = False
        if problem:
            warnings.warn(f"running without fused convolutions: {problem}", stacklevel=2)
            self._run_with(in_search_precision(self.folded, self.settings.precision, fuse=False))

    def _fusion_problem(self, images: Tensor, expected: Tensor) -> str:
        """What is wrong with the fused logits; empty if they agree."""
        try:
            logits = self._search(images)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # such as a sum whose smaller part is the convolution
            return first_line(error)
        difference = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
        return "" if difference <= AGREEMENT else f"logits differ by {difference:.2g} of their size"

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return self(x.new_zeros(1, *x.shape[1:]))[:0] + 0 * x.flatten(1).sum(1, keepdim=True)
        if self.fusion_unchecked:
            self._check_fusion(x)
        if torch.is_grad_enabled() and x.requires_grad:
            return _Differentiable.apply(x, self)
        with torch.no_grad(), torch.cuda.device_of(x):
            logits = [self._predict(part)[: len(part)].to(x.dtype, copy=True) for part in self._split(x)]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _tile_size(self, x: Tensor) -> int:
        return self.settings.tile or TILE.get(x.device.type, TILE["cpu"])

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(self._tile_size(x))

    def _padded(self, part: Tensor) -> Tensor:
        """Padded to one of a few sizes: CUDA libraries choose, and graphs fix, their kernels by size."""
        tile = self._tile_size(part)
        if self.settings.one_size:
            missing = tile - len(part)
        elif self.capturing:
            missing = min(tile, max(SMALLEST_CAPTURE, 1 << (len(part) - 1).bit_length())) - len(part)
        elif part.device.type == "cuda" and not self.any_size:
            missing = -len(part) % max(1, tile // SIZES_PER_TILE)
        else:
            missing = 0
        part = part.to(self.dtype)
        return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part

    def _predict(self, part: Tensor) -> Tensor:
        x = self._padded(part)
        captured = self._capture(("score", *x.shape), self._score, x, gradient=False)
        return self._score(channels_last(x)) if captured is None else captured.forward(x)

    def differentiable_tiles(self, x: Tensor) -> list[PlainTile | CapturedTile]:
        """The forward pass of every tile, ready for the backward pass."""
        self.passes += 1
        return [self._differentiable_tile(part, place) for place, part in enumerate(self._split(x))]

    def _differentiable_tile(self, part: Tensor, place: int) -> PlainTile | CapturedTile:
        x = self._padded(part)
        captured = self._capture(("search", place, *x.shape), self._search, x, gradient=True)
        if captured is not None:
            captured.forward(x)
            return captured
        leaf = channels_last(x).detach().requires_grad_()
        with torch.enable_grad():
            return PlainTile(leaf, self._search(leaf), self._search)

    def _capture(self, key: tuple[Any, ...], executor: Executor, x: Tensor, gradient: bool) -> CapturedTile | None:
        """The captured tile of this key, made on first use; None if tiles are not captured."""
        if not self.capturing:
            return None
        if key not in self._captured:
            try:
                self._captured[key] = CapturedTile(executor, x, gradient)
            except Exception as error:  # capture fails in as many ways as there are kernels, and needs memory
                warnings.warn(f"running without CUDA graphs: {first_line(error)}", stacklevel=2)
                self.capturing = False
                self._captured.clear()
                return None
        return self._captured[key]


class _Differentiable(torch.autograd.Function):
    """The tiles of a batch as one differentiable function; each is pulled back under the member's settings."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, member: FastMember) -> Tensor:
        with torch.cuda.device_of(x):
            ctx.tiles = member.differentiable_tiles(x)
        ctx.sizes = [len(part) for part in member._split(x)]
        ctx.member, ctx.passes = member, member.passes
        ctx.x = x.detach()
        return torch.cat([t.logits.detach()[:n].to(x.dtype) for t, n in zip(ctx.tiles, ctx.sizes)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        with torch.cuda.device_of(cotangent):
            return _input_gradient(ctx, cotangent), None


def _input_gradient(ctx: Any, cotangent: Tensor) -> Tensor:
    member = ctx.member
    if ctx.passes != member.passes and any(isinstance(tile, CapturedTile) for tile in ctx.tiles):
        # The member has run again since, over the same buffers.
        ctx.tiles = member.differentiable_tiles(ctx.x)
        ctx.passes = member.passes
    gradient = torch.empty_like(ctx.x)
    for tile, part, place in zip(ctx.tiles, cotangent.split(ctx.sizes), gradient.split(ctx.sizes)):
        place.copy_(tile.pull_back(part)[: len(part)])
    return gradient
