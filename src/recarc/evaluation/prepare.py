"""The first step of an evaluation: everything that can be refused is refused here, before any attack."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.attacks.combine import adapted
from recarc.attacks.problem import Problem, check_ball
from recarc.attacks.unmasking import PROBABILITIES, Masked
from recarc.ensemble import RandomizedEnsemble, check_logits, untouched
from recarc.errors import InputError, first_line
from recarc.evaluation.attack import Attacker, inner
from recarc.evaluation.fingerprint import Json, configuration, describe, knob_of
from recarc.evaluation.resume import FirstLogits
from recarc.evaluation.samples import Samples, TensorSamples
from recarc.evaluation.tiling import (
    Passes,
    any_accelerated,
    dtype_of,
    folded,
    input_dtype,
    largest_tile,
    reproducible,
    tiled,
)
from recarc.fast.tiles import tile_of_work, work_on
from recarc.geometry import Ball
from recarc.inputs import check_finite, check_labels, check_scale, check_x, check_y, layout_hint
from recarc.runtime import COARSE, TILE, check_precision

FIRST = 16  # samples on which members are tried
PEERS = ("autoattack", "foolbox", "torchattacks")  # packages with a `stage` in recarc.adapters
OWN = "as the members"
SHORT = 2e9  # floating-point operations after which a CPU should have a tile done: an attack calls members 1,000 times
TILES, ROOM = 16, 32 * 2**30  # of a batch that spans shards: tiles, and bytes of free memory on a GPU for each shard
LARGE = 10_000  # numbers in an image; a few dozen images larger than this fill a GPU, and its memory


@dataclass(frozen=True)
class Settings:
    """How to evaluate, as the caller of `evaluate` wishes."""

    precision: str | None = "auto"
    batch_size: int | str = "auto"
    shard_size: int | str = "auto"
    tile: int | str = "auto"
    save_inputs: bool = False
    device: torch.device | None = None  # where members without parameters are called


@dataclass(frozen=True)
class Prepared:
    """An evaluation that can start: inputs that fit together, and what its records depend on (`config`)."""

    samples: Samples
    ball: Ball
    members: RandomizedEnsemble  # tiled, in their own precision
    attacker: Attacker
    passes: Passes  # of the attack
    device: torch.device
    classes: int
    batch_size: int
    smallest_batch: int
    config: Json
    first_logits: FirstLogits

    def problem(self, rows: np.ndarray) -> Problem:
        """The problem of these samples, checked, in float32 on the members' device."""
        x, y = self.samples.batch(rows)
        check_x(x)
        check_y(y, x)
        x, y = x.to(self.device), y.to(self.device).long()
        check_finite(x, rows.tolist())
        ball = self.ball.take(torch.from_numpy(rows))
        ball.check(x)
        check_labels(y, self.classes)
        return Problem(self.members, x.float(), y, ball)

    def adapted(self, masked: Masked) -> Prepared:
        """With an attack that knows how many samples there are and which members mask their gradients, and how.

        A member whose outputs are probabilities is searched in float64: in float32 the small ones are 0.
        """
        attacker, members = self.attacker, list(self.attacker.ensemble.members)
        attack = adapted(attacker.attack, self.members, len(self.samples), masked)
        reacts = knob_of(describe(attack), "masked") is not None and self.device.type != "mps"
        for i in {i for i, name in masked if reacts and name == PROBABILITIES}:
            own = RandomizedEnsemble([inner(self.members.members[i])])
            members[i] = tiled(own, self.config["tile"], self.passes, "float64").members[0]
        ensemble = attacker.ensemble.with_members(members)
        return replace(
            self,
            attacker=replace(attacker, attack=attack, ensemble=ensemble),
            config={**self.config, "attack": describe(attack)},
        )


def prepare(
    ensemble: RandomizedEnsemble, attack: Any, samples: Samples, ball: Ball, settings: Settings, saved: Json
) -> Prepared:
    """Check that everything fits together; sizes left at "auto" are those of the `saved` configuration, if any."""
    x = samples.batch(np.arange(min(FIRST, len(samples))))[0]
    device = ensemble.device_of_members() or settings.device or x.device
    precision = resolved_precision(settings.precision, ensemble, device, saved)
    shard = _size("shard_size", settings.shard_size, default_shard(device, x))
    shard = saved.get("shard_size", shard)  # a run that is resumed keeps its own
    usual_tile = default_tile(device, x, ensemble)
    tile = _size("tile", settings.tile, saved.get("tile") or usual_tile)
    check_ball(ball)
    check_radii(ball, len(samples), x)
    check_scale(x, ball.box)
    if precision is not None:
        check_precision(precision, device)
    check_attack(attack)
    members = tiled(ensemble, tile, Passes())
    with reproducible(device), torch.no_grad():
        x = x.to(device).float()
        logits = _first_logits(ensemble, members, x, samples)
        repeated = members.logits(x)
    if isinstance(samples, TensorSamples):
        samples.check(ball)
    else:  # the others are checked batch by batch
        check_finite(x)
        ball.take(torch.arange(len(x))).check(x)
    if hasattr(attack, "check_fit"):
        attack.check_fit(len(ensemble), logits.shape[-1], ball)
    coarse, passes = precision in COARSE, Passes()
    most = search_tile(device, x, tile, len(samples)) if coarse else tile
    attacked = tiled(ensemble, tile, passes, precision, most)
    if precision == "float32" and device.type == "cpu" and _is_ours(attack):
        attacked = folded(attacked, x, logits, None if tile == usual_tile else tile)
        coarse = any_accelerated(attacked)
    with reproducible(device):
        attack_tile = largest_tile(attacked, x)
    fixed = {"precision": precision or OWN, "device": device.type, "shard_size": shard, "tile": tile}
    return Prepared(
        samples=samples,
        ball=ball,
        members=members,
        attacker=Attacker(attack, attacked, input_dtype(precision), coarse),
        passes=passes,
        device=device,
        classes=logits.shape[-1],
        batch_size=default_batch(device, shard, attack_tile)
        if settings.batch_size == "auto"
        else min(_size("batch_size", settings.batch_size, shard), shard),
        smallest_batch=min(tile if device.type == "cpu" else attack_tile, shard),
        config=configuration(ensemble, attack, samples, ball, logits, **fixed, save_inputs=settings.save_inputs),
        first_logits=FirstLogits.of(ensemble, logits, repeated),
    )


def resolved_precision(
    wanted: str | None, ensemble: RandomizedEnsemble, device: torch.device, saved: Json
) -> str | None:
    """What "auto" means here: that of the `saved` run, if any; else float16 on a GPU, float32 elsewhere.

    None, each member's own precision, where that is not float32. The points that a float16 search finds are judged,
    and pushed on where it was wrong, in float32.
    """
    if wanted != "auto":
        return wanted
    if saved:
        return None if saved["precision"] == OWN else str(saved["precision"])
    kinds = {dtype_of(member) for member in ensemble.members}
    if not kinds <= {torch.float32, None}:
        return None
    tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
    return "float16" if tensor_cores and torch.float32 in kinds else "float32"


def _first_logits(ensemble: RandomizedEnsemble, members: RandomizedEnsemble, x: Tensor, samples: Samples) -> Tensor:
    """Logits on the first samples; refuses inputs and labels that do not fit the members."""
    try:
        _try_members(ensemble, x[:2])
    except RuntimeError as error:
        why = layout_hint(x) or first_line(error)
        raise InputError(f"the members cannot take inputs of shape {tuple(x.shape)}: {why}") from None
    logits = members.logits(x)
    classes = logits.shape[-1]
    names = getattr(samples, "classes", None)
    if names is not None and (len(names) > classes or (len(names) < classes and not _only_numbers(names))):
        raise InputError(
            f"the ensemble has {classes} classes, {samples.name} has {len(names)}; "
            "was the ensemble trained on this data set?"
        )
    labels = getattr(samples, "y", None)
    if isinstance(labels, Tensor):
        check_labels(labels, classes)
    return logits


def _only_numbers(names: Sequence[str]) -> bool:
    """Whether classes have no names, so that there may be more of them than occur among the labels."""
    return list(names) == [str(i) for i in range(len(names))]


def _try_members(ensemble: RandomizedEnsemble, x: Tensor) -> None:
    """Call each member once, in its own precision and on a copy: it must give logits and not write into its input."""
    for i, member in enumerate(ensemble.members):
        copy = x.to(dtype_of(member) or x.dtype, copy=True)
        with untouched(copy, i):
            out = member(copy)
        check_logits(out, copy, i)


def check_attack(attack: Any) -> None:
    """Refuse what cannot be called as attack(ensemble, x, y, ball) and has no `outcome`."""
    if isinstance(attack, type):
        raise InputError(f"attack is the class {attack.__name__}; expected an attack: write {attack.__name__}()")
    if isinstance(attack, str):
        raise InputError(f"attack is {attack!r}; names are for the command line: write recarc.ARC() or Tight()")
    package = type(attack).__module__.partition(".")[0]
    if package in PEERS:
        raise InputError(
            f"attack is a {type(attack).__name__} of {package}; "
            f"pass it through recarc.adapters.{package}.stage(...), or as a callable of (ensemble, x, y, ball)"
        )
    if not hasattr(attack, "outcome") and not _takes_four(attack):
        raise InputError(
            f"attack is a {type(attack).__name__}; expected one of recarc.attacks, or a callable of "
            "(ensemble, x, y, ball) that returns x_adv"
        )


def _is_ours(attack: Any) -> bool:
    """Whether it is an attack of this package, and so are those within it: others may want the members themselves."""
    if not type(attack).__module__.startswith("recarc.attacks."):
        return False
    values = [getattr(attack, knob.name) for knob in fields(attack)]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    return all(_is_ours(part) for part in parts if callable(part) or hasattr(part, "outcome"))


def _takes_four(attack: Any) -> bool:
    if not callable(attack):
        return False
    try:
        inspect.signature(attack).bind(None, None, None, None)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True


def check_radii(ball: Ball, count: int, x: Tensor) -> None:
    """One radius, or one per sample; of images in [0, 1] none in linf that exceeds the box."""
    if isinstance(ball.eps, Tensor):
        if len(ball.eps) != count:
            raise InputError(
                f"eps has {len(ball.eps)} values for {count} samples; give one per sample, or a single number"
            )
    elif ball.eps > 1 and str(ball.norm) == "linf" and ball.box == (0, 1) and x.dim() == 4:
        raise InputError(f"eps {ball.eps:g} in linf is larger than the box [0, 1]: did you mean {ball.eps:g}/255?")


def _size(name: str, value: int | str, default: int) -> int:
    if value == "auto":
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}; expected 'auto' or a whole number of at least 1")
    return value


def default_tile(device: torch.device, x: Tensor, ensemble: RandomizedEnsemble) -> int:
    """Large enough to keep the device busy, small enough that padding the last few samples costs little.

    On a CPU the fewer the more work members do, since nothing of a tile is kept before its attack ends; counted, not
    timed, so that it is the same on every machine.
    """
    if device.type == "cuda":
        return 256 if x[0].numel() <= LARGE else 64
    if x[0].numel() < 1000:
        return 64
    work = 1
    for member in (m for m in ensemble.members if isinstance(m, nn.Module)):
        with contextlib.suppress(RuntimeError):  # what a member cannot take is refused later
            work += work_on(member, x[:1].to(device, torch.float32, copy=True))
    return min(16, tile_of_work(SHORT, work))


def search_tile(device: torch.device, x: Tensor, tile: int, count: int) -> int:
    """What accelerated members take at most at once: more than `tile` on a GPU, but no more than there are samples."""
    if device.type != "cuda" or x[0].numel() > LARGE:
        return tile
    return max(tile, min(TILE["cuda"], -(-count // tile) * tile))


def default_batch(device: torch.device, shard: int, tile: int) -> int:
    """A shard; several on a GPU with room for them, if the members are so small that they take large tiles."""
    if device.type != "cuda":
        return shard
    free, _ = torch.cuda.mem_get_info(device)  # others may run on this GPU
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # what this process keeps unused
    return max(shard, min(TILES * tile, free // ROOM * shard))


def default_shard(device: torch.device, x: Tensor) -> int:
    """On a GPU a whole number of tiles, so that none is padded."""
    if device.type != "cuda":
        return 256
    return 5 * TILE["cuda"] if x[0].numel() <= LARGE else 128
