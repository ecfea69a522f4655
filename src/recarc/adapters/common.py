"""What the adapters share: optional imports, our attacks called from outside, and other attacks called from here."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from recarc.attacks.base import Attack
from recarc.attacks.problem import Problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.checks import warn
from recarc.evaluation.masking import look_like_probabilities
from recarc.geometry import Ball

PROBE = 8  # inputs on which outputs are checked
Kind = TypeVar("Kind")


# Packages that need not be installed -------------------------------------------------------------------


def require(module: str, extra: str) -> Any:
    """The module of another package, or one line that says which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise not_installed(module, extra, error) from None


def not_installed(module: str, extra: str, error: ImportError) -> InputError:
    """What to install: the package itself, or what it cannot be imported without."""
    package = module.split(".")[0]
    name = (error.name or package).split(".")[0]
    if name == package or not _is_installed(package):
        return InputError(f"{package} is not installed: install recarc[{extra}]")
    return InputError(f"{module} cannot be imported without {name}: install recarc[{extra}] or {name} itself")


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # disabled in sys.modules
        return False


# Attacks of this package, called in the style of another -----------------------------------------------


def class_for(attack: Attack, wrapper: type[Kind]) -> type[Kind]:
    """A subclass of the wrapper under the name of the attack, which is what the other package shows."""
    if not isinstance(attack, Attack):
        raise InputError(f"{attack!r} is not an attack of recarc; give an object, e.g. wrap(ARC(steps=20), ...)")
    return type(type(attack).__name__, (wrapper,), {"__doc__": wrapper.__doc__, "__module__": wrapper.__module__})


def ensemble_from(models: Any, alpha: Sequence[float] | Tensor | None) -> RandomizedEnsemble:
    """One model, several with sampling probabilities, or a randomized ensemble as it is."""
    if isinstance(alpha, float | int):
        raise InputError(f"alpha is {alpha!r}; here it is one sampling probability per model; the step is step_size")
    if isinstance(models, RandomizedEnsemble):
        return models if alpha is None else models.with_alpha(alpha)
    return RandomizedEnsemble(list(models) if isinstance(models, list | tuple) else [models], alpha)


def as_labels(y: Any, one_hot: bool = False) -> Tensor:
    """Integer labels (B,). Strings are refused; so are one-hot rows, unless the other package expects them."""
    if not isinstance(y, Tensor):
        try:
            y = torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError):
            shown = type(y[0]).__name__ if len(y) else type(y).__name__
            raise InputError(f"labels are {shown}; expected integers 0..classes-1: encode names") from None
    if y.dim() == 2 and one_hot:
        if not bool(((y == 0) | (y == 1)).all() & (y.sum(1) == 1).all()):
            raise InputError("labels are rows of numbers that are not one-hot; give integers or one-hot rows")
        return y.argmax(1)
    return y


@torch.no_grad()
def warn_about_probabilities(ensemble: RandomizedEnsemble, x: Tensor) -> None:
    """The same warning that an evaluation gives, for attacks that are called outside of one."""
    for i, member in enumerate(ensemble.members):
        if len(x) and look_like_probabilities(member(x[:PROBE])):
            warn(f"the outputs of model {i} look like probabilities; attacks expect logits: remove its softmax")


# Attacks of other packages, as attacks of this one -----------------------------------------------------


Perturb = Callable[[nn.Module, Tensor, Tensor, Ball], Tensor]


class Target(nn.Module):
    """The single model that another package attacks: x -> sum_i alpha_i f_i(x), or the logits of one member."""

    def __init__(self, ensemble: RandomizedEnsemble, member: int | None) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.member = member
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.ensemble.expected_logits(x) if self.member is None else self.ensemble.members[self.member](x)


@dataclass(frozen=True)
class PeerAttack(Attack):
    """An attack of another package as a stage of `WorstOf`; made by `stage(...)` of that package's adapter.

    Whatever it returns is projected into the ball and the box, and its success is measured here. Such attacks draw from
    the global generators, which are seeded before and restored after; so, unlike this package's own attacks, one that
    draws may treat a sample differently in another batch.
    """

    name: str  # package, version and attack
    knobs: Mapping[str, Any]
    run: Perturb = field(repr=False)
    member: int | None = None  # None: the expected logits
    seed: int = 0

    @property
    def __name__(self) -> str:
        """What a stage of this attack is called, such as foolbox_LinfPGD."""
        package, *_, attack = self.name.split()
        return re.sub(r"\W", "_", f"{package}_{attack}")

    def perturb(self, problem: Problem) -> Tensor:
        ensemble, x, y, ball = problem.ensemble, problem.x, problem.y, problem.ball
        if self.member is not None and not 0 <= self.member < len(ensemble):
            raise InputError(f"member is {self.member}; the ensemble has members 0..{len(ensemble) - 1}")
        target, x_adv = Target(ensemble, self.member), x.clone()
        radius = ball.radius(x)
        with global_seed(self.seed):
            for eps in radius.unique().tolist():  # other packages take one eps per batch
                rows = (radius == eps).nonzero()[:, 0]
                one = Ball(ball.norm, eps if isinstance(ball.eps, Tensor) else ball.eps, ball.box)
                with torch.enable_grad():
                    result = self.run(target, x[rows].detach().contiguous(), y[rows], one)
                x_adv[rows] = _projected(result, x[rows], one, self.name)
        return x_adv


def _projected(result: Tensor, x: Tensor, ball: Ball, name: str) -> Tensor:
    if result.shape != x.shape:
        raise InputError(f"{name} returned shape {tuple(result.shape)} for inputs {tuple(x.shape)}")
    result = result.detach().to(x)
    result = torch.where(torch.isfinite(result), result, x)  # a diverged pixel is no perturbation
    return ball.move(x, ball.project(result - x, x))


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that can be written to a file; runs are compared by them."""
    kinds = (bool, int, float, str, type(None))
    return {k: v for k, v in values.items() if not k.startswith("_") and isinstance(v, kinds)}


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, and restore them at the end."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)
