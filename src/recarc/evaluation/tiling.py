"""Members as an evaluation calls them: in tiles of one size, with passes counted, in a chosen precision."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recarc.attacks.nearest_plane import Linearised, by_autograd
from recarc.combined import Divisible, Member
from recarc.ensemble import RandomizedEnsemble
from recarc.runtime import COARSE, PRECISIONS, kernel_settings, out_of_memory

if TYPE_CHECKING:
    from recarc.fast import FastMember

WIDEST, LONG = 64, 6e9  # images in a folded member's tile on a CPU, and operations: more is no faster
ROUNDING = 1e-4  # by which folding may change logits, of the largest


@dataclass
class Passes:
    """Samples that went through a member, forward and backward."""

    forward: int = 0
    backward: int = 0


class TiledMember(Divisible):
    """The same member, fed batches of exactly `tile` samples (the last one padded).

    Matrix products and convolutions choose their kernel, and with it the order of their sums, by batch size. With one
    size for every call, the logits and gradients of a sample are the same to the last bit whatever else is in the
    batch, so records depend neither on the batch size, nor on which samples an attack still works on, nor on ranks.
    """

    def __init__(self, member: Member, tile: int | None, passes: Passes, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.member = member
        self.tile = tile
        self.passes = passes
        self.dtype = dtype

    def __deepcopy__(self, memo: dict[int, object]) -> TiledMember:
        return TiledMember(copy.deepcopy(self.member, memo), self.tile, self.passes, self.dtype)

    def voters(self) -> tuple[TiledMember, ...]:
        from recarc.fast import FastMember

        own = self.member.voters() if isinstance(self.member, Divisible) else ()
        tile = self.member.settings.tile if isinstance(self.member, FastMember) else self.tile
        tiles = [self.tile if isinstance(voter, FastMember) else tile for voter in own]  # copies do their own tiling
        return tuple(TiledMember(v, t, self.passes, self.dtype) for v, t in zip(own, tiles))

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        self.passes.forward += count
        if self.tile is None:  # the member does its own tiling
            logits = self.member(x)
        else:
            wanted = dtype_of(self.member) or self.dtype or x.dtype
            parts = [self._one_tile(part, self.tile) for part in x.to(wanted).split(self.tile)]
            logits = torch.cat(parts).to(x.dtype)
        if logits.requires_grad:
            logits.register_hook(lambda _: self._count_backward(count))
        return logits

    def linearised(self, x: Tensor, count: int) -> Linearised:
        """As `recarc.attacks.nearest_plane.linearised` wants it: the member's own where it does its own tiling."""
        own = None if self.tile is not None or not len(x) else getattr(self.member, "linearised", None)
        if own is None:
            return by_autograd(self, x)
        self.passes.forward += len(x)
        found = Linearised(*own(x, count))

        def counted(weights: Tensor, again: bool) -> Tensor:
            self._count_backward(len(weights) * len(x))
            return found.pull_back(weights, again)

        return found._replace(pull_back=counted)

    def _one_tile(self, part: Tensor, tile: int) -> Tensor:
        count = len(part)
        if count == tile:
            return self.member(part)
        filler = part[:1].detach() if count else part.new_zeros(1, *part.shape[1:])
        padding = filler.expand(tile - count, *part.shape[1:])
        return self.member(torch.cat([part, padding]))[:count]

    def _count_backward(self, count: int) -> None:
        self.passes.backward += count


def dtype_of(member: Member) -> torch.dtype | None:
    """The precision of a member's parameters; None if it has none."""
    if not isinstance(member, nn.Module):
        return None
    return next((p.dtype for p in member.parameters() if p.is_floating_point()), None)


def tiled(
    ensemble: RandomizedEnsemble, tile: int, passes: Passes, precision: str | None = None, wide: int | None = None
) -> RandomizedEnsemble:
    """The ensemble with tiled members, converted copies where `precision` is not their own.

    Accelerated members take tiles of `wide` samples (`tile` by default), and leave it to the caller to make room when
    memory runs out.
    """
    if precision in COARSE:
        from recarc.fast import FastMember, accelerate

        fast = accelerate(ensemble, precision, tile=wide or tile, one_size=True).members
        copies = [TiledMember(m, None if isinstance(m, FastMember) else tile, passes) for m in fast]
        for member in accelerated(ensemble.with_members(copies)):
            member.caller_makes_room = True
        return ensemble.with_members(copies)
    dtype = None if precision is None else PRECISIONS[precision]
    return ensemble.with_members([TiledMember(_converted(m, dtype), tile, passes, dtype) for m in ensemble.members])


def folded(ensemble: RandomizedEnsemble, x: Tensor, logits: Tensor, wide: int | None = None) -> RandomizedEnsemble:
    """Tiled members for a search on a CPU: with batch norms folded, in tiles of `wide` or as many as are worth it.

    A member stays as it is where there is nothing to fold, or where its folded copy fails, has no gradient or does not
    give its `logits` (M, B, C) at x.
    """
    members: list[Any] = list(ensemble.members)
    with torch.no_grad():
        return ensemble.with_members([_folded(m, x, own, wide) or m for m, own in zip(members, logits)])


def _folded(tiled: TiledMember, x: Tensor, logits: Tensor, wide: int | None) -> TiledMember | None:
    from recarc.fast import FastMember, FastSettings
    from recarc.fast.fold import folds
    from recarc.fast.tiles import tile_of_work, work_on

    own = tiled.member
    if not isinstance(own, nn.Module) or dtype_of(own) != torch.float32 or not folds(own):
        return None
    try:
        tile = wide or min(WIDEST, tile_of_work(LONG, work_on(own, x)))
        fast = FastMember(own, FastSettings("float32", tile=tile, one_size=True))
        difference = (fast(x) - logits).abs().max()  # the first call also tries gradients, in tiles of all sizes
    except Exception as error:  # a user's forward pass may object in any way to another layout, or to being changed
        if out_of_memory(error):
            raise
        return None
    same = float(difference) <= ROUNDING * float(logits.abs().max())
    return TiledMember(fast, None, tiled.passes) if same else None


def accelerated(ensemble: RandomizedEnsemble) -> list[FastMember]:
    """The accelerated copies inside tiled members, with those of the members that they combine."""
    from recarc.fast import FastMember

    own = [m.member for m in ensemble.members if isinstance(m, TiledMember) and isinstance(m.member, FastMember)]
    copies = [part for member in own for part in (member, *member.voters())]
    return [copy for copy in copies if isinstance(copy, FastMember)]


def any_accelerated(ensemble: RandomizedEnsemble) -> bool:
    """Whether some tiled member is a copy that rounds in its own way."""
    return any(isinstance(m, TiledMember) and m.tile is None for m in ensemble.members)


def largest_tile(ensemble: RandomizedEnsemble, x: Tensor) -> int:
    """The most samples that a tiled member takes at once."""
    members: list[Any] = list(ensemble.members)
    return max(m.tile or m.member.sizes(x)[-1] for m in members)


def retiled(ensemble: RandomizedEnsemble, count: int) -> RandomizedEnsemble:
    """Tiled members for this many samples, counted apart: no padding for a few, and no tiles that are very small."""
    tiles = [(m, min(count, max(m.tile or count, 16))) for m in ensemble.members if isinstance(m, TiledMember)]
    parts = [(m.member, tile, m.dtype) for m, tile in tiles]
    return ensemble.with_members([TiledMember(member, tile, Passes(), dtype) for member, tile, dtype in parts])


def input_dtype(precision: str | None) -> torch.dtype:
    """The precision of an attack's inputs: half precision is for the members only, pixels need more."""
    return torch.float64 if precision == "float64" else torch.float32


def _converted(member: Member, dtype: torch.dtype | None) -> Member:
    if dtype is None or not isinstance(member, nn.Module) or dtype_of(member) in (None, dtype):
        return member
    return copy.deepcopy(member).to(dtype)


def reproducible(device: torch.device) -> AbstractContextManager[None]:
    """On CUDA: deterministic kernels in full float32."""
    return kernel_settings(device, tf32=False, benchmark=False, deterministic=True)
