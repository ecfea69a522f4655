"""Do ensemble, data, ball and sizes fit together? Refused here, before any attack."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from recarc.ensemble import RandomizedEnsemble, check_logits, untouched
from recarc.errors import InputError, first_line
from recarc.evaluation.samples import Samples
from recarc.evaluation.tiling import dtype_of
from recarc.fast import TILE
from recarc.geometry import Ball
from recarc.inputs import check_labels

PEERS = ("autoattack", "foolbox", "torchattacks")  # packages with a `stage` in recarc.adapters
LARGE = 10_000  # numbers in an image above which a few dozen of them fill a GPU, and its memory


def first_logits(ensemble: RandomizedEnsemble, members: RandomizedEnsemble, x: Tensor, samples: Samples) -> Tensor:
    """Logits on the first samples; refuses inputs and labels that the members do not fit."""
    with torch.no_grad():
        try:
            _check_members(ensemble, x[:2])
        except RuntimeError as error:
            reason = first_line(error)
            raise InputError(f"the members cannot take inputs of shape {tuple(x.shape)}: {reason}") from None
        logits = members.logits(x)
    classes = logits.shape[-1]
    names = getattr(samples, "classes", None)
    if names is not None and len(names) != classes:
        raise InputError(
            f"the ensemble has {classes} classes, {samples.name} has {len(names)}; they do not belong together"
        )
    labels = getattr(samples, "y", None)
    if isinstance(labels, Tensor):
        check_labels(labels, classes)
    return logits


def _check_members(ensemble: RandomizedEnsemble, few: Tensor) -> None:
    """One call each, in the precision of the member and on a copy: it must give logits and leave its input alone."""
    for i, member in enumerate(ensemble.members):
        copy = few.to(dtype_of(member) or few.dtype, copy=True)
        with untouched(copy, i):
            out = member(copy)
        check_logits(out, copy, i)


def check_attack(attack: Any) -> None:
    """An object that can be called as attack(ensemble, x, y, ball), or has an `outcome`."""
    if isinstance(attack, type):
        raise InputError(f"attack is the class {attack.__name__}; expected an attack: write {attack.__name__}()")
    if isinstance(attack, str):
        raise InputError(f"attack is {attack!r}; names are for the command line: write recarc.ARC() or Tight()")
    package = type(attack).__module__.partition(".")[0]
    if package in PEERS:
        raise InputError(
            f"attack is a {type(attack).__name__} of {package}; "
            f"hand it over through recarc.adapters.{package}.stage(...) or as a callable of (ensemble, x, y, ball)"
        )
    if not hasattr(attack, "outcome") and not _takes_four(attack):
        raise InputError(
            f"attack is a {type(attack).__name__}; expected one of recarc.attacks, or a callable of "
            "(ensemble, x, y, ball) that returns x_adv"
        )


def _takes_four(attack: Any) -> bool:
    if not callable(attack):
        return False
    try:
        inspect.signature(attack).bind(None, None, None, None)
    except TypeError:
        return False
    except ValueError:  # a built-in that does not tell
        return True
    return True


def check_ball(ball: Any, count: int) -> None:
    if not isinstance(ball, Ball):
        raise InputError(f"ball is a {type(ball).__name__}; expected recarc.Ball(norm, eps)")
    if isinstance(ball.eps, Tensor) and len(ball.eps) != count:
        raise InputError(f"eps has {len(ball.eps)} values for {count} samples; give one each, or a single number")


def size(name: str, value: int | str, default: int) -> int:
    if value == "auto":
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}; expected 'auto' or a whole number of at least 1")
    return value


def default_tile(device: torch.device, x: Tensor) -> int:
    """Large enough to keep the device busy, small enough that padding the last few samples costs little."""
    if device.type == "cuda":
        return 256 if x[0].numel() <= LARGE else 64
    return 16 if x[0].numel() >= 1000 else 64


def search_tile(device: torch.device, x: Tensor, tile: int, count: int) -> int:
    """What accelerated members take at once: more than `tile` on a GPU, but no more than there are samples."""
    if device.type != "cuda" or x[0].numel() > LARGE:
        return tile
    return max(tile, min(TILE["cuda"], -(-count // tile) * tile))


def default_shard(device: torch.device, x: Tensor) -> int:
    """On a GPU a whole number of tiles, so that none is padded."""
    if device.type != "cuda":
        return 256
    return 5 * TILE["cuda"] if x[0].numel() <= LARGE else 128
