"""Hyper-parameters by name: the paper's, and a fast set that trains in about ten minutes on one GPU.

Those of a data set and an architecture are here; what a method changes about them is in `Method.recipe`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from recarc.errors import InputError, unknown
from recarc.training.methods import method_named

if TYPE_CHECKING:
    from recarc.training.method import Method

RECIPES = ("fast", "paper")
SCHEDULES = ("step", "one-cycle", "constant")
LARGE = ("vgg16", "resnet18", "preact_resnet18", "wrn28_4")  # the paper's nets with weight decay 5e-4 on CIFAR-10


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of a training run. `drops` are fractions of the run."""

    epochs: float
    batch: int = 128
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    schedule: str = "step"
    drops: tuple[float, ...] = (0.5, 0.75)
    warmup: float = 0.25  # fraction of a one-cycle run
    label_smoothing: float = 0.0
    ema: float = 0.0  # 0: no weight average
    attack_steps: int = 7
    attack_step: float = 0.25  # fraction of eps
    # Batch norm during the attack: "train" as in Rice et al. 2020, "eval" as in TRADES, which can be folded.
    attack_mode: str = "train"
    replays: int = 1
    copies: int = 0  # of the training set, attacked once for the whole stage (see AdversarialCopies); 0: in every step
    crop: bool = True  # at random, where the data set is cropped at all
    augment_after: bool = False  # crop and flip the attacked copies in every step, not the images before the attack
    diversity: float = 1.0  # scales the diversity terms of adp, gal and trs; of our own methods, see there
    crown: float = 1.0  # the share of CROWN's bounds in ibp's at the start of the ramp; 0: intervals alone
    validation: int = 1000  # images held out of the training set
    validate_every: int = 1  # epochs
    patience: int = 0  # epochs without improvement before stopping; 0: run to the end and keep the best

    def __post_init__(self) -> None:
        _check(self.epochs > 0 and math.isfinite(self.epochs), "epochs", self.epochs, "a number > 0")
        _check(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "a number > 0")
        _check(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        _check(0 <= self.ema < 1, "ema", self.ema, "in [0, 1), 0 for no weight average")
        _check(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "in [0, 1)")
        _check(self.weight_decay >= 0, "weight_decay", self.weight_decay, ">= 0")
        _check(self.diversity >= 0, "diversity", self.diversity, ">= 0")
        _check(0 <= self.crown <= 1, "crown", self.crown, "in [0, 1], 0 for intervals alone")
        _check(self.attack_step > 0, "attack_step", self.attack_step, "a fraction of eps > 0")
        in_range = 0 < self.warmup < 1
        _check(in_range, "warmup", self.warmup, "a fraction of the run in (0, 1), such as 0.01 for almost none")
        every = self.validate_every
        whole = isinstance(every, int) and every >= 1
        _check(whole, "validate_every", every, "a whole number of epochs >= 1; use validation=0 for no validation")
        for name, least in (
            ("batch", 1),
            ("attack_steps", 1),
            ("replays", 1),
            ("copies", 0),
            ("validation", 0),
            ("patience", 0),
        ):
            value = getattr(self, name)
            _check(isinstance(value, int) and value >= least, name, value, f"a whole number >= {least}")
        flag = isinstance(self.augment_after, bool) and self.copies >= self.augment_after
        _check(flag, "augment_after", self.augment_after, "true or false, and true only with copies")
        _check(isinstance(self.crop, bool), "crop", self.crop, "true or false")
        _choice("schedule", self.schedule, SCHEDULES)
        _choice("optimizer", self.optimizer, ("sgd", "adam"))
        _choice("attack_mode", self.attack_mode, ("train", "eval"))

    def learning_rate(self, step: int, steps: int) -> float:
        """The rate of step `step` (from 0) of `steps`."""
        done = step / steps
        if self.schedule == "step":
            return self.lr * 0.1 ** sum(done >= drop for drop in self.drops)
        if self.schedule == "one-cycle":  # linear up to the peak, linear down to zero
            middle = (step + 0.5) / steps
            return self.lr * min(middle / self.warmup, (1 - middle) / (1 - self.warmup))
        return self.lr

    def average_decay(self, step: int) -> float:
        """The decay of the weight average; small at first, so that the initial weights are soon forgotten."""
        return min(self.ema, (1 + step) / (10 + step))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "drops": list(self.drops)}

    def changed(self, changes: dict[str, Any]) -> Recipe:
        """The same recipe with these fields replaced; the error for an unknown field suggests the nearest."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise unknown("recipe field", name, known)
        return replace(self, **changes)


def recipe_for(name: str, method: str | Method, data: str, arch: str) -> Recipe:
    """The recipe of this name for a method, a data set and an architecture."""
    _choice("recipe", name, RECIPES)
    base = _paper(data, arch) if name == "paper" else _fast(data, arch)
    return (method_named(method) if isinstance(method, str) else method).recipe(base, name, data)


def _paper(data: str, arch: str) -> Recipe:
    """The paper's appendix."""
    if data not in ("svhn", "cifar10", "cifar100", "imagenet"):
        raise InputError(f"the paper has no recipe for {data}; use recipe 'fast'")
    if data == "imagenet":
        return Recipe(90, batch=256, weight_decay=1e-4, drops=(1 / 3, 2 / 3), validation=5000)
    return Recipe(200, weight_decay=5e-4 if data == "cifar10" and arch in LARGE else 2e-4)


def _fast(data: str, arch: str) -> Recipe:
    """One cycle, weight average, attack in evaluation mode; about ten minutes on one GPU (digits: seconds on a CPU)."""
    if data == "digits":
        return Recipe(
            epochs=20,
            batch=64,
            lr=0.1,
            weight_decay=1e-4,
            schedule="one-cycle",
            ema=0.98,
            attack_mode="eval",
            validation=138,
            validate_every=4,
        )
    small = arch in ("resnet20", "cnn", "linear", "mlp")
    # A small net underfits in adversarial training: little weight decay, a high peak rate and long training serve it
    # best. Paper: MobileNetV1 has ResNet-20's weight decay. Here: that of the large nets, because with little of it it
    # overfits in 110 epochs (of the held-out images under attack 48.5 % after 86 epochs, 43 % in the end).
    base = Recipe(
        epochs=110 if small else 30,
        lr=0.05 if data == "svhn" else 0.2,  # adversarial training on SVHN collapses to one class at 0.2
        weight_decay=1e-4 if small else 5e-4,
        schedule="one-cycle",
        label_smoothing=0.0 if small else 0.1,
        ema=0.999,
        attack_mode="eval",
    )
    return replace(base, epochs=10) if data in ("mnist", "fashion_mnist") else base


def for_diversity(base: Recipe, name: str) -> Recipe:
    """Without an attack while training, for members meant to differ: little weight decay, no label smoothing."""
    if name == "paper":
        return replace(base, weight_decay=1e-4)
    return replace(base, epochs=min(base.epochs, 30), weight_decay=1e-4, label_smoothing=0.0)


def _check(valid: bool, name: str, value: object, expected: str) -> None:
    if not valid:
        raise InputError(f"{name} is {value!r}; expected {expected}")


def _choice(kind: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown(kind, value, known)
