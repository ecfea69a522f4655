"""What a run is said to cost."""

from __future__ import annotations

import pytest

from paper import costs
from paper.items import ITEMS
from paper.settings import ADP, TRS, bat


def test_passes_are_those_of_the_recipes() -> None:
    cifar, imagenet = bat("cifar10", "linf"), bat("imagenet", "linf")
    assert costs.training_passes(cifar, "paper") == 50_000 * 2 * 200 * 8
    assert costs.training_passes(cifar, "fast") == 50_000 * 2 * 110 * 8
    assert costs.training_passes(bat("cifar10", "l2", "resnet18"), "fast") == 50_000 * (30 * 8 + 20 * 7 + 100)
    assert costs.training_passes(imagenet, "paper") == pytest.approx(1_281_167 * (90 + 22.5 * 5))
    assert costs.training_passes(ADP, "fast") == 50_000 * 3 * 30
    reused = {row.name: row.ensemble for row in ITEMS["second-member"].rows}["step-200"]
    assert costs.training_passes(reused, "fast") == 50_000 * (110 * 8 + 20 * 7 + 200)
    own = {row.name: row.ensemble for row in ITEMS["paper-recipe"].rows}["resnet20-l2"]
    assert costs.training_passes(own, "fast") == 50_000 * (200 * 8 + 20 * 7 + 200), "it names its recipe itself"
    assert costs.training_passes(TRS, "paper") == 50_000 * 3 * 120 * 21


def test_what_the_zoo_has_costs_no_training() -> None:
    assert costs.training_seconds(bat("cifar10", "linf"), "fast") == 0
    assert costs.training_seconds(bat("cifar10", "linf"), "paper") > 600
    reused = {row.name: row.ensemble for row in ITEMS["second-member"].rows}["step-200"]
    assert costs.training_seconds(reused, "fast") == pytest.approx(
        costs.seconds(50_000 * (20 * 7 + 200), reused, costs.TRAIN)
    ), "its first member is shipped"
    assert costs.shown(ITEMS["table3"], "fast").startswith("attack ")
    assert costs.shown(ITEMS["figure2"], "fast") == "seconds"


def test_a_search_for_alpha_is_counted() -> None:
    rows = {row.name: row for row in ITEMS["table5-cifar10"].rows}
    each = sum(20 * 2 * (size + 2 / 3) for size in range(1, 10))
    assert costs.attack_passes(rows["linf"]) == pytest.approx(each * 10_000 + 11 * 1000 * 20 * 2)
