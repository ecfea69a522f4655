"""The Adversarial Robustness Toolbox: its classifiers as members, our attacks as its evasion attacks.

attack = recarc.adapters.art.wrap(ARC(), [classifier_1, classifier_2], alpha=[0.9, 0.1], eps=8/255)
x_adv = attack.generate(x, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.adapters.common import as_labels, class_for, ensemble_from, not_installed, warn_about_probabilities
from recarc.adapters.members import AdaptedMember
from recarc.attacks.base import Attack
from recarc.errors import InputError
from recarc.geometry import Ball

try:
    from art.attacks.attack import EvasionAttack
    from art.estimators.classification import PyTorchClassifier
except ImportError as error:
    raise not_installed("art", "art", error) from None


def member(classifier: Any) -> AdaptedMember:
    """An ART PyTorchClassifier as a member: [0, 1] is mapped to its clip_values, its preprocessing moves inside."""
    low, high = _clip_values(classifier)
    mean, std = _standardisation(classifier)
    # ((high - low) u + low - mean) / std with u in [0, 1]
    scale = high - low
    return AdaptedMember(classifier.model, (mean - low) / scale, std / scale, source="the ART classifier")


def wrap(
    attack: Attack,
    estimator: Any,
    alpha: Sequence[float] | None = None,
    eps: float = 8 / 255,
    norm: str | float = "linf",
    batch_size: int = 128,
) -> WrappedAttack:
    """Any attack of recarc as an ART evasion attack: `wrap(ARC(), classifiers, alpha).generate(x, y)`.

    `estimator`: an ART PyTorchClassifier, several of them (then `alpha` are their sampling probabilities), or a
    RandomizedEnsemble, whose inputs lie in [0, 1]. `eps` is in the units of clip_values.
    """
    return class_for(attack, WrappedAttack)(attack, estimator, alpha, eps, norm, batch_size)


class WrappedAttack(EvasionAttack):
    """An attack of recarc in the style of ART, on numpy arrays."""

    attack_params = ("eps", "norm", "batch_size")
    _estimator_requirements = ()

    def __init__(
        self,
        attack: Attack,
        estimator: Any,
        alpha: Sequence[float] | None,
        eps: float,
        norm: str | float,
        batch_size: int,
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
        self.ensemble = ensemble_from([_in_own_units(c) for c in classifiers] if classifiers else estimator, alpha)
        self.wrapped, self.eps, self.norm, self.batch_size = attack, eps, norm, batch_size
        Ball(norm, eps, self.box)  # refuses a bad eps or norm now

    def generate(self, x: np.ndarray, y: np.ndarray | None = None, **kwargs: Any) -> np.ndarray:
        """Adversarial inputs, same shape and dtype as x; y are labels or one-hot rows, None: the predictions."""
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
            parts.append(self.wrapped(self.ensemble, images, truth, ball).cpu().numpy())
        return np.concatenate(parts) if parts else x.copy()

    def expected_accuracy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Exact expected accuracy of the ensemble on each input."""
        device = self.ensemble.device_of_members() or torch.device("cpu")
        truth = as_labels(y, one_hot=True).to(device)
        return self.ensemble.expected_accuracy(torch.as_tensor(x).to(device), truth).cpu().numpy()

    @torch.no_grad()
    def _predicted(self, x: Tensor) -> Tensor:
        return self.ensemble.expected_logits(x).argmax(1)


def _in_own_units(classifier: Any) -> AdaptedMember:
    """The classifier's logits for inputs in the units of its clip_values."""
    return AdaptedMember(classifier.model, *_standardisation(classifier), source="the ART classifier", checked=False)


def _clip_values(classifier: Any) -> tuple[float, float]:
    if not isinstance(classifier, PyTorchClassifier):
        raise InputError(f"{type(classifier).__name__} is not an ART PyTorchClassifier; others have no gradients here")
    if classifier.clip_values is None:
        raise InputError(
            "the ART classifier has no clip_values; create it with clip_values=(0, 1), so that its range is known"
        )
    low, high = (np.unique(np.asarray(v, dtype=np.float64)) for v in classifier.clip_values)
    if len(low) != 1 or len(high) != 1:
        raise InputError("the ART classifier has clip_values that differ between features; only one range is supported")
    return float(low[0]), float(high[0])


def _standardisation(classifier: Any) -> tuple[Tensor, Tensor]:
    """Its preprocessing as (mean, std); defences that transform inputs are refused."""
    mean, std = torch.zeros(()), torch.ones(())
    for step in classifier.preprocessing_operations:
        if not hasattr(step, "mean") or not hasattr(step, "std"):
            raise InputError(
                f"the ART classifier has the defence {type(step).__name__}; a member must be a model without defences"
            )
        mean, std = (torch.as_tensor(np.asarray(v), dtype=torch.float32) for v in (step.mean, step.std))
    if classifier.postprocessing_defences:
        raise InputError("the ART classifier has postprocessing defences; a member must return plain logits")
    if not classifier.channels_first:
        raise InputError("the ART classifier takes channels last; members take (B, C, H, W)")
    return tuple(v if v.dim() == 0 else v.flatten().view(-1, 1, 1) for v in (mean, std))  # type: ignore[return-value]


__all__ = ["WrappedAttack", "member", "wrap"]
