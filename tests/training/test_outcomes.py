"""Every method, really run on digits, shows what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_training import small
from torch import Tensor

from recarc import Ball, RandomizedEnsemble
from recarc.data import load
from recarc.errors import InputError
from recarc.training.method import StepContext
from recarc.training.methods import method_named
from recarc.training.methods.bat import BAT
from recarc.training.methods.ibp import IBP

pytestmark = pytest.mark.xdist_group("outcomes")  # one worker, so that the members they share are trained once
Cross = Callable[[RandomizedEnsemble], Tensor]
Transfer = Callable[[RandomizedEnsemble], float]
TestSet = tuple[Tensor, Tensor]


def clean(ensemble: RandomizedEnsemble, test_set: TestSet) -> Tensor:
    return ensemble.correct(*test_set).double().mean(1)


def test_adversarial_training_beats_plain_training_under_attack(
    natural: RandomizedEnsemble, at: RandomizedEnsemble, cross: Cross, test_set: TestSet
) -> None:
    assert float(cross(at)[0, 0]) > float(cross(natural).diagonal().max()) + 0.15
    assert float(clean(natural, test_set).min()) > 0.9
    assert float(clean(at, test_set)[0]) > 0.9


def test_bat_gives_a_second_member_strong_on_the_firsts_examples_and_helpless_alone(
    at: RandomizedEnsemble, cross: Cross
) -> None:
    bat = small("bat", epochs=4, start=at)
    accuracy = cross(bat)
    assert float(accuracy[0, 1]) > float(accuracy[0, 0]) + 0.1  # on the first's examples the second is the better one
    assert float(accuracy[1, 1]) < 0.2
    assert bat.alpha.tolist() == pytest.approx([0.9, 0.1])
    first = bat.members[0].state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(v, first[k]) for k, v in at.members[0].state_dict().items())  # type: ignore[union-attr]


@pytest.mark.parametrize("after", [False, True])
def test_bat_on_copies_that_were_attacked_once_gives_the_same_kind_of_member(
    at: RandomizedEnsemble, cross: Cross, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked = []
    plain = BAT.perturb

    def counted(self: BAT, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        attacked.append(len(x))
        return plain(self, context, x, y)

    monkeypatch.setattr(BAT, "perturb", counted)
    bat = small("bat", epochs=4, start=at, changes={"copies": 2, "augment_after": after, "validation": 0})
    assert sum(attacked) == 2 * len(load("digits", "train"))  # not 4 epochs of batches
    accuracy = cross(bat)
    assert float(accuracy[0, 1]) > float(accuracy[0, 0]) + 0.1
    assert float(accuracy[1, 1]) < 0.2


def test_copies_are_for_methods_that_attack_fixed_members() -> None:
    with pytest.raises(InputError, match="copies is for methods that attack fixed members alone"):
        small("at", changes={"copies": 2})
    with pytest.raises(InputError, match="augment_after is True; expected"):
        small("bat", changes={"augment_after": True})


def test_iat_is_symmetric_and_its_first_member_is_at(at: RandomizedEnsemble, cross: Cross) -> None:
    iat = small("iat", epochs=4)
    accuracy = cross(iat)
    assert abs(float(accuracy[0, 0] - accuracy[1, 1])) < 0.12
    assert abs(float(accuracy[0, 1] - accuracy[1, 0])) < 0.12
    assert float(accuracy.diagonal().min()) > 0.45
    first = iat.members[0].state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(v, first[k]) for k, v in at.members[0].state_dict().items())  # type: ignore[union-attr]
    assert not torch.equal(first["net.fc.weight"], iat.members[1].state_dict()["net.fc.weight"])  # type: ignore[union-attr]


def test_members_of_iat_are_at_by_seed_on_the_same_images() -> None:
    changes = {"validation": 0}  # else each seed holds back other images
    pair, alone = small("iat", epochs=1, changes=changes), small("at", epochs=1, seed=1, changes=changes)
    second = pair.members[1].state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(v, second[k]) for k, v in alone.members[0].state_dict().items())  # type: ignore[union-attr]


def test_free_training_is_robust(natural: RandomizedEnsemble, cross: Cross, test_set: TestSet) -> None:
    free = small("free", epochs=4)
    assert float(cross(free)[0, 0]) > float(cross(natural).diagonal().max()) + 0.15
    assert float(clean(free, test_set)[0]) > 0.8


def test_ibp_members_are_certified_by_intervals_and_others_are_not(test_set: TestSet) -> None:
    settings: dict[str, Any] = {"arch": "mlp", "arch_options": {}, "eps": 0.1}
    ibp, natural = small("ibp", epochs=8, **settings), small("natural", epochs=2, **settings)
    x, y = test_set
    method, ball = method_named("ibp"), Ball("linf", 0.1)
    assert isinstance(method, IBP)
    shares = [
        float(method.certified_share(method.lowest_margins(rec.members[0], x, y, ball, beta=0.0), y).mean())  # type: ignore[arg-type]
        for rec in (ibp, natural)
    ]
    assert shares[0] > 0.15 and shares[1] < 0.05
    assert float(clean(ibp, test_set)[0]) > 0.7


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("adp", {"epochs": 6}),
        ("gal", {"epochs": 3, "members": 2}),
        ("dverge", {"epochs": 3, "changes": {"lr": 0.2}}),
        ("trs", {"epochs": 3, "members": 2}),
    ],
)
def test_diversity_methods_lower_the_transfer(
    method: str, settings: dict[str, Any], natural: RandomizedEnsemble, transfer: Transfer, test_set: TestSet
) -> None:
    start = natural if method == "dverge" else None
    ensemble = small(method, start=start, **settings)
    assert transfer(ensemble) < transfer(natural) - 0.05
    assert float(clean(ensemble, test_set).min()) > 0.75


def test_boosted_members_are_robust_and_barre_chooses_alpha(cross: Cross, natural: RandomizedEnsemble) -> None:
    settings: dict[str, Any] = {"epochs": 2, "members": 2, "changes": {"validation": 60}}
    mrboost, barre = small("mrboost", **settings), small("barre", **settings)
    accuracy = cross(mrboost).diagonal()
    assert float(accuracy[1]) > float(cross(natural).diagonal().max()) + 0.15
    assert float(accuracy[1]) > float(accuracy[0])  # it started from the first
    for one, other in zip(mrboost.members, barre.members):  # up to the third member the methods differ in alpha alone
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))  # type: ignore[union-attr]
    assert mrboost.alpha.tolist() == [0.5, 0.5]
    assert float(barre.alpha[1]) > 0.5
