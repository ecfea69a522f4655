"""`accelerate` and the members it makes: called in tiles of a few sizes, each captured or compiled where that pays."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recarc.combined import Divisible, Member
from recarc.ensemble import RandomizedEnsemble, as_ensemble
from recarc.errors import InputError, first_line
from recarc.fast.choice import FIXED, Way, fastest_way
from recarc.fast.convert import folded_copy, in_search_precision, is_fully_fused, is_fused, is_traceable
from recarc.fast.execute import CapturedTile, Executor, PlainTile
from recarc.fast.fold import can_be_copied
from recarc.fast.tape import Differentiable, Tape
from recarc.fast.tiles import SMALLEST_ON_CPU, SMALLEST_TILE, busy_tile, captured_sizes, halves, tiles_for
from recarc.runtime import COARSE, TILE, check_precision, out_of_memory

STEADY = 4  # answers of a member that must agree
FEW = 4  # a quarter of the images that keep a GPU busy take as long as a single one
MANY = 16  # times as much in the largest of several sizes of tiles
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
    `compile` takes a while before it pays off: use it for long runs. `graphs` captures tiles of a few sizes as CUDA
    graphs; None does so for what can be traced. With `one_size` every tile is padded to the full size, so that a
    sample's figures do not depend on the rest of its batch. Modules that cannot be copied are used unchanged, as are
    callables that are no modules.
    """
    ensemble = as_ensemble(ensemble)
    device = ensemble.device_of_members() or torch.device("cpu")
    check_precision(precision, device, ("float32", *COARSE))
    settings = FastSettings(precision, compile, graphs if device.type == "cuda" else False, tile, one_size)
    return ensemble.with_members([fast_copy(member, settings) for member in ensemble.members])


def fast_copy(member: Member, settings: FastSettings) -> Member:
    """The member itself where it cannot be copied."""
    return FastMember(member, settings) if isinstance(member, nn.Module) and can_be_copied(member) else member


@dataclass
class Count:
    """A number that a module keeps; its own attributes are slow to set."""

    value: int = 0


class FastMember(Divisible):
    """One member with its batch norms folded; logits and input gradients in the dtype of the input.

    Gradients flow to the input only, and may be taken several times.
    """

    def __init__(self, member: nn.Module, settings: FastSettings) -> None:
        super().__init__()
        self.settings = settings
        self.folded = folded_copy(member)
        self.copies = tuple(fast_copy(v, settings) for v in member.voters()) if isinstance(member, Divisible) else ()
        own = next((p.dtype for p in self.folded.parameters() if p.is_floating_point()), None)
        self.dtype = own if settings.precision == "float32" else torch.float32
        if self.dtype != own:
            self.folded.float()
        self.may_capture = any(p.is_cuda for p in self.folded.parameters())
        self.traceable = is_traceable(self.folded)
        self.passes = Count()  # differentiable forward passes: a captured tile holds the activations of the last one
        self.busy = 0  # images that keep a GPU busy; measured with the tile
        self._tile: int | None = None
        self._captured: dict[tuple[Any, ...], CapturedTile] = {}
        self.caller_makes_room = False  # when memory runs out, as `evaluate` does; else graphs are given up here
        self._run_with(in_search_precision(self.folded, settings.precision), settings.precision)
        # Pure float32 has no tensor cores, so it is worth a moment to find the fastest kernels.
        free = self.may_capture and not (settings.one_size or settings.compile)
        self.unchosen = free and settings.precision == "float32"
        self.unchecked = is_fused(self.search_net) or settings.precision == "float16" or not self.traceable

    def voters(self) -> tuple[Member, ...]:
        return self.copies

    def _run_with(self, net: nn.Module, precision: str, way: Way = FIXED) -> None:
        """Search with this network; predict with it too, unless its precision is too coarse for predictions."""
        settings = self.settings
        self.search_net = self.score_net = net
        self._search = self._score = Executor(net, precision, settings.compile, way)
        if precision == "bfloat16":
            self.score_net = in_search_precision(self.folded, "tf32")
            self._score = Executor(self.score_net, "tf32", settings.compile)
        self.any_size = is_fully_fused(self.search_net)
        self._sizes: tuple[int, ...] | None = None
        self.capturing = self.may_capture and not settings.compile if settings.graphs is None else settings.graphs

    def _choose(self, x: Tensor) -> None:
        """The fastest of several ways to run the same convolutions."""
        self.unchosen = False
        count = min(len(x), self.tile_for(x), CHECKED_IMAGES)
        nets = {layout: in_search_precision(self.folded, "float32", way=Way(layout)) for layout in (True, False)}

        def run(way: Way) -> None:
            executor = Executor(nets[way.channels_last], "float32", way=way)
            leaf = executor.laid_out(x[:count].detach().to(self.dtype)).requires_grad_()
            with torch.enable_grad():
                logits = executor(leaf)
            executor.pull_back(logits, leaf, torch.ones_like(logits))

        way = fastest_way(self.folded, x[:count], "float32", run)
        if way != FIXED:
            self._run_with(nets[way.channels_last], "float32", way)

    def _check(self, x: Tensor) -> None:
        """On the first images: a member that does more than its trace shows is run unfused.

        One whose activations are too large for float16 is run in TF32. One that cannot be traced and does not answer
        alike every time is not captured: a graph would freeze a choice that it makes.
        """
        images = self._search.laid_out(x[:CHECKED_IMAGES].detach().to(self.dtype))
        with torch.no_grad():
            if not self.traceable and self.capturing:
                first, *others = (self.folded(images) for _ in range(STEADY))
                self.capturing = self.may_capture = all(torch.allclose(first, other, rtol=1e-3) for other in others)
            expected = self.folded(images)
            self._compile_ahead(images)
            problem = self._disagreement(images, expected) if self.settings.precision == "float16" else ""
            if problem and is_fused(self.search_net):
                warnings.warn(f"running without fused convolutions: {problem}", stacklevel=2)
                self._run_with(in_search_precision(self.folded, self.settings.precision, fuse=False), "float16")
                problem = self._disagreement(images, expected)
            if problem and images.is_cuda:
                warnings.warn(f"running in TF32 instead of float16: {problem}", stacklevel=2)
                self._run_with(in_search_precision(self.folded, "tf32"), "tf32")
        self.unchecked = False

    def _compile_ahead(self, images: Tensor) -> None:
        """Build the kernels of fused blocks side by side; where that fails, each is built when it is first needed."""
        if not is_fused(self.search_net):
            return
        leaf = self._search.laid_out(images).detach().requires_grad_()

        def run() -> None:
            with torch.enable_grad():
                logits = self._search(leaf)
            self._search.pull_back(logits, leaf, torch.ones_like(logits))

        with contextlib.suppress(Exception):
            from recarc.fast.kernels import compile_ahead

            compile_ahead(run)

    def _disagreement(self, images: Tensor, expected: Tensor) -> str:
        """What is wrong with the logits of the search; empty if they agree."""
        try:
            logits = self._search(images)
        except RuntimeError as error:  # such as a sum whose smaller part is the convolution
            if out_of_memory(error):
                raise
            return first_line(error)
        difference = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
        return "" if difference <= AGREEMENT else f"logits differ by {difference:.2g} of their size"

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return self(x.new_zeros(1, *x.shape[1:]))[:0] + 0 * x.flatten(1).sum(1, keepdim=True)
        if torch.is_grad_enabled() and x.requires_grad:
            return Differentiable.apply(x, self)
        with torch.no_grad(), torch.cuda.device_of(x):
            logits = [self._predict(part, size).to(x.dtype, copy=True) for part, size in self.parts(x)]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def linearised(self, x: Tensor, count: int) -> tuple[Tensor, Callable[[Tensor, bool], Tensor], bool]:
        """Logits at x and their pull-back, with no autograd around it (see `recarc.attacks.nearest_plane`)."""
        together = count > 1 and self._side_by_side(x, count)
        tape = Tape(self, x.repeat(count, *(1,) * (x.dim() - 1)) if together else x)

        def pull_back(weights: Tensor, again: bool) -> Tensor:
            if together and len(weights) == count:
                return tape.pull_back(weights.flatten(0, 1)).unflatten(0, weights.shape[:2])
            single = Tape(self, x) if together else tape
            return torch.stack([single.pull_back(each) for each in weights])

        return tape.logits()[: len(x)], pull_back, together

    def _side_by_side(self, x: Tensor, count: int) -> bool:
        """Whether so many gradients of few images are found sooner at once, on as many copies of the images."""
        return self.capturing and 2 * self._work(x, count * len(x)) < (1 + count) * self._work(x, len(x))

    def _work(self, x: Tensor, count: int) -> int:
        """What a pass over so many images like x costs, in images; a few take as long as some more would."""
        return sum(max(size, self.busy // FEW) for _, size in tiles_for(count, self.sizes(x)))

    def tile_for(self, x: Tensor) -> int:
        """The most images at once: as many as keep the device busy, fewer the more work each is."""
        if self._tile is None:
            self._tile = self.settings.tile or TILE.get(x.device.type, TILE["cpu"])
            if x.is_cuda:
                self.busy = busy_tile(self.folded, x)
                largest = 1 if self.settings.one_size else MANY
                self._tile = min(self._tile, max(SMALLEST_TILE, largest * self.busy))
        return self._tile

    def sizes(self, x: Tensor) -> tuple[int, ...]:
        """The sizes of tiles, ascending: graphs fix, and CUDA libraries choose, their kernels by size.

        With `one_size`, only sizes at which this member gives the same bits.
        """
        if self.unchosen:
            self._choose(x)
        if self.unchecked:
            self._check(x)
        if self.settings.one_size and self._sizes is not None:  # also if tiles are no longer captured
            return self._sizes
        tile = self.tile_for(x)
        if not self.capturing or (self.settings.one_size and not self.any_size):
            if self.settings.one_size and self.may_capture:
                self._tile = tile = self._steady_tile(x, tile, SMALLEST_TILE)
                self._sizes = (tile,)
            elif self.settings.one_size and not self.capturing:
                self._tile = tile = self._steady_tile(x, tile, SMALLEST_ON_CPU)
                self._sizes = self._same_bits(x, halves(tile, SMALLEST_ON_CPU))
            return self._sizes or (tile,)
        if self._sizes is None:
            self._sizes = captured_sizes(tile)
            if self.settings.one_size:
                self._sizes = self._same_bits(x, self._sizes)
        return self._sizes

    def _steady_tile(self, x: Tensor, tile: int, smallest: int) -> int:
        """The tile, halved as long as a library's kernels let the figures of an image depend on its place in it."""
        while tile > smallest:
            images = _repeated(x, tile)
            away = tile // 2 + 1
            if torch.equal(self._figures(images).roll(away, 0), self._figures(images.roll(away, 0))):
                break
            tile = max(smallest, tile // 2)
        return tile

    def _same_bits(self, x: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes at which logits and gradients of the first images are those of the largest, to the last bit."""
        images = _repeated(x, sizes[-1])
        found = {size: self._figures(images[:size]) for size in sizes}
        return tuple(size for size in sizes if torch.equal(found[size], found[sizes[-1]][:size]))

    def _figures(self, images: Tensor) -> Tensor:
        """Logits and some gradient of each of these images, as this member computes them."""
        leaf = self._search.laid_out(images.to(self.dtype)).detach().requires_grad_()
        with torch.enable_grad():
            logits = self._search(leaf)
        signs = torch.arange(logits.shape[1], device=images.device).cos().expand_as(logits)
        return torch.cat([logits.detach(), self._search.pull_back(logits, leaf, signs).flatten(1)], dim=1)

    def parts(self, x: Tensor) -> list[tuple[Tensor, int]]:
        """The batch in tiles, each with the size to which it is padded."""
        plan = tiles_for(len(x), self.sizes(x))
        if not (self.capturing or self.settings.one_size):
            step = max(1, plan[0][1] // SIZES_PER_TILE) if x.is_cuda and not self.any_size else 1
            plan = [(count, -(-count // step) * step) for count, _ in plan]
        return [(part, size) for part, (_, size) in zip(x.split([count for count, _ in plan]), plan)]

    def _padded(self, part: Tensor, size: int) -> Tensor:
        part, missing = part.to(self.dtype), size - len(part)
        return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part

    def _predict(self, part: Tensor, size: int) -> Tensor:
        kind = "search" if self._score is self._search else "score"
        captured = self._capture((kind, 0, size, *part.shape[1:]), self._score, part)
        if captured is not None:
            self.passes.value += kind == "search"
            return captured.forward(part)
        return self._score(self._score.laid_out(self._padded(part, size)))[: len(part)]

    def differentiable_tiles(self, x: Tensor) -> tuple[list[PlainTile | CapturedTile], list[int]]:
        """The forward pass of every tile, ready for the backward pass, and how many images each holds."""
        self.passes.value += 1
        places: Counter[int] = Counter()
        tiles, counts = [], []
        for part, size in self.parts(x):
            tiles.append(self._differentiable_tile(part, size, places[size]))
            counts.append(len(part))
            places[size] += 1
        return tiles, counts

    def _differentiable_tile(self, part: Tensor, size: int, place: int) -> PlainTile | CapturedTile:
        captured = self._capture(("search", place, size, *part.shape[1:]), self._search, part)
        if captured is not None:
            captured.forward(part)
            return captured
        leaf = self._search.laid_out(self._padded(part, size)).detach().requires_grad_()
        with torch.enable_grad():
            return PlainTile(leaf, self._search(leaf), self._search)

    def _capture(self, key: tuple[Any, ...], executor: Executor, part: Tensor) -> CapturedTile | None:
        """The captured tile of this key (kind, place among those of its size, size, shape), made on first use.

        None if tiles are not captured. That memory ran out says nothing about the member: a caller that makes room is
        told and may try again.
        """
        if not self.capturing:
            return None
        if key not in self._captured:
            try:
                first = self._captured.get((key[0], 0, *key[2:]))
                self._captured[key] = CapturedTile(executor, self._padded(part, key[2]), like=first)
            except Exception as error:  # capture fails in as many ways as there are kernels, and needs memory
                if self.caller_makes_room and out_of_memory(error):
                    raise
                self.stop_capturing(first_line(error))
                return None
        return self._captured[key]

    def free_captured(self) -> bool:
        """Give up the memory of captured tiles, if there are any; they are captured again when they are next used."""
        some = bool(self._captured)
        self._captured.clear()
        return some

    def stop_capturing(self, why: str) -> None:
        """From now on run plainly: slower, in less memory, with the same figures."""
        warnings.warn(f"running without CUDA graphs: {why}", stacklevel=3)
        self.capturing = False
        self.free_captured()


def _repeated(x: Tensor, count: int) -> Tensor:
    """So many of these images, over again where there are fewer."""
    return x[torch.arange(count, device=x.device) % len(x)].detach()
