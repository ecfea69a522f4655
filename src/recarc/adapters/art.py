"""The Adversarial Robustness Toolbox: its classifiers as members, this package's attacks as its evasion attacks.

attack = recarc.adapters.art.ARC([classifier_1, classifier_2], alpha=[0.9, 0.1], eps=8/255)
x_adv = attack.generate(x, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc import attacks
from recarc.adapters.members import AdaptedMember, adapted, missing
from recarc.adapters.outward import as_labels, as_rec, warn_about_probabilities
from recarc.errors import InputError
from recarc.geometry import Ball

try:
    from art.attacks.attack import EvasionAttack
    from art.estimators.classification import PyTorchClassifier
except ImportError as error:
    raise missing("art", "art", error) from None


def member(classifier: Any) -> AdaptedMember:
    """An ART PyTorchClassifier as a member: [0, 1] is mapped to its clip_values, its preprocessing moves inside."""
    low, high = _clip_values(classifier)
    mean, std = _standardisation(classifier)
    # ((high - low) u + low - mean) / std with u in [0, 1]
    scale = high - low
    return adapted(classifier.model, (mean - low) / scale, std / scale, None, "the ART classifier")


class RecarcAttack(EvasionAttack):
    """An attack of this package with `generate(x, y)` on numpy arrays; eps is in the units of clip_values.

    `estimator`: an ART PyTorchClassifier, several of them (then `alpha` are their sampling probabilities), or a
    RandomizedEnsemble, whose inputs lie in [0, 1].
    """

    attack_params = ("eps", "norm", "batch_size")
    _estimator_requirements = ()

    def __init__(
        self,
        attack: attacks.Attack,
        estimator: Any,
        alpha: Sequence[float] | None = None,
        eps: float = 8 / 255,
        norm: str | float = "linf",
        batch_size: int = 128,
    ) -> None:
        super().__init__(estimator=estimator)
        several = list(estimator) if isinstance(estimator, list | tuple) else [estimator]
        classifiers = [c for c in several if isinstance(c, PyTorchClassifier)]
        if len(classifiers) not in (0, len(several)):
            raise InputError("some of the estimators are ART classifiers and some are not; wrap all of them or none")
        boxes = {_clip_values(c) for c in classifiers} or {(0.0, 1.0)}
        if len(boxes) > 1:
            raise InputError(f"the classifiers have different clip_values {sorted(boxes)}; they cannot share inputs")
        self.box = boxes.pop()
        self.ensemble = as_rec([_native(c) for c in classifiers] if classifiers else estimator, alpha)
        self.recipe, self.eps, self.norm, self.batch_size = attack, eps, norm, batch_size
        Ball(norm, eps, self.box)

    def generate(self, x: np.ndarray, y: np.ndarray | None = None, **kwargs: Any) -> np.ndarray:
        """Adversarial inputs, same shape and dtype as x; y are labels or one-hot rows, None: what the model says."""
        if kwargs:
            raise InputError(f"{type(self).__name__}.generate does not take {sorted(kwargs)}; masks are not supported")
        if self.targeted:
            raise InputError(f"{type(self).__name__} is untargeted: it lowers the expected accuracy")
        device = self.ensemble.device_of_members() or torch.device("cpu")
        labels = None if y is None else as_labels(y, one_hot=True)
        ball = Ball(self.norm, self.eps, self.box)
        parts: list[np.ndarray] = []
        for start in range(0, len(x), self.batch_size):
            rows = slice(start, start + self.batch_size)
            images = torch.as_tensor(x[rows]).to(device)
            if not parts:
                warn_about_probabilities(self.ensemble, images)
            truth = self._predicted(images) if labels is None else labels[rows].to(device)
            parts.append(self.recipe(self.ensemble, images, truth, ball).cpu().numpy())
        return np.concatenate(parts) if parts else x.copy()

    def expected_accuracy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Exact expected accuracy of the ensemble on each input."""
        device = self.ensemble.device_of_members() or torch.device("cpu")
        truth = as_labels(y, one_hot=True).to(device)
        return self.ensemble.expected_accuracy(torch.as_tensor(x).to(device), truth).cpu().numpy()

    @torch.no_grad()
    def _predicted(self, x: Tensor) -> Tensor:
        return self.ensemble.expected_logits(x).argmax(1)


class ARC(RecarcAttack):
    """`ARC(estimator, alpha=None, eps=8/255, norm="linf", batch_size=128, steps=20, ...)`: knobs of `recarc.ARC`."""

    def __init__(self, estimator: Any, alpha: Any = None, eps: float = 8 / 255, **knobs: Any) -> None:
        norm, size = knobs.pop("norm", "linf"), knobs.pop("batch_size", 128)
        super().__init__(attacks.ARC(**knobs), estimator, alpha, eps, norm, size)


class Climb(RecarcAttack):
    """`Climb(estimator, alpha=None, eps=8/255, ...)`: knobs of `recarc.Climb`, which starts from the corrected ARC."""

    def __init__(self, estimator: Any, alpha: Any = None, eps: float = 8 / 255, **knobs: Any) -> None:
        norm, size = knobs.pop("norm", "linf"), knobs.pop("batch_size", 128)
        chosen = attacks.Climb(**{"start": attacks.ARC(variant="corrected"), **knobs})
        super().__init__(chosen, estimator, alpha, eps, norm, size)


class Tight(RecarcAttack):
    """`Tight(estimator, alpha=None, eps=8/255, preset="standard", ...)`: knobs of `recarc.Tight`."""

    def __init__(self, estimator: Any, alpha: Any = None, eps: float = 8 / 255, **knobs: Any) -> None:
        norm, size = knobs.pop("norm", "linf"), knobs.pop("batch_size", 128)
        super().__init__(attacks.Tight(**knobs), estimator, alpha, eps, norm, size)


def _native(classifier: Any) -> nn.Module:
    """The classifier's logits in the units of its clip_values."""
    mean, std = _standardisation(classifier)
    return _Standardised(classifier.model, mean, std).eval()


class _Standardised(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)


def _clip_values(classifier: Any) -> tuple[float, float]:
    if not isinstance(classifier, PyTorchClassifier):
        raise InputError(f"{type(classifier).__name__} is not an ART PyTorchClassifier; only those have gradients here")
    if classifier.clip_values is None:
        raise InputError(
            "the ART classifier has no clip_values; make it with clip_values=(0, 1), so that its range is known"
        )
    low, high = (np.unique(np.asarray(v, dtype=np.float64)) for v in classifier.clip_values)
    if len(low) != 1 or len(high) != 1:
        raise InputError("the ART classifier has clip_values that differ between features; one range is supported")
    return float(low[0]), float(high[0])


def _standardisation(classifier: Any) -> tuple[Tensor, Tensor]:
    """Its preprocessing as (mean, std); defences that transform inputs are not a part of the model."""
    mean, std = torch.zeros(()), torch.ones(())
    for step in classifier.preprocessing_operations:
        if not hasattr(step, "mean") or not hasattr(step, "std"):
            raise InputError(
                f"the ART classifier has the defence {type(step).__name__}; a member is a model without one"
            )
        mean, std = (torch.as_tensor(np.asarray(v), dtype=torch.float32) for v in (step.mean, step.std))
    if classifier.postprocessing_defences:
        raise InputError("the ART classifier has postprocessing defences; a member gives plain logits")
    if not classifier.channels_first:
        raise InputError("the ART classifier takes channels last; members take (B, C, H, W)")
    return tuple(v if v.dim() == 0 else v.flatten().view(-1, 1, 1) for v in (mean, std))  # type: ignore[return-value]


__all__ = ["ARC", "Climb", "RecarcAttack", "Tight", "member"]
