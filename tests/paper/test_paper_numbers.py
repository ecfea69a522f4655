"""The paper's numbers, as far as they can be checked against each other, and the recipes around them."""

from __future__ import annotations

import pytest

from paper.costs import shown
from paper.items import ITEMS, command_for, ensembles, item_named, rows_of, tables
from paper.recipe import Measurement, radius
from paper.settings import bat, budget
from paper.zoo import training_commands
from recarc import ARC, Tight, zoo
from recarc.errors import InputError


def test_every_printed_difference_is_the_difference_of_its_columns() -> None:
    for numbers in (*tables.NETWORKS.values(), *tables.DATASETS.values()):
        _, apgd, arc, diff = numbers
        assert diff == pytest.approx(arc - apgd, abs=0.005)


def test_tables_agree_where_they_print_the_same_thing_twice() -> None:
    for norm in ("l2", "linf"):
        assert tables.DATASETS["cifar10", norm] == tables.NETWORKS["resnet20", norm]
        assert tables.STRESS[norm]["APGD"] == tables.DATASETS["cifar10", norm][1]
        assert tables.STRESS[norm]["ARC"] == tables.DATASETS["cifar10", norm][2]
        assert tables.SEARCH[4][1 if norm == "l2" else 2] == tables.DATASETS["cifar100", norm][2]
        for data in ("svhn", "cifar10", "cifar100", "imagenet"):
            # The paper prints 47.61 in one table and 47.60 in the other for ImageNet in l2.
            assert tables.INDIVIDUAL[data, norm, 0][1] == pytest.approx(tables.DATASETS[data, norm][0], abs=0.011)


def test_headline_numbers_are_verbatim() -> None:
    row = {r.name: r for r in item_named("table1").rows}["resnet20-linf"]
    printed = {reading.column: reading.paper for m in row.measurements for reading in m.readings}
    assert printed == {
        "AT: PGD": 45.66,
        "APGD": 61.10,
        "ARC": 40.71,
        "tight": None,
        "floor": None,
        "AT: ARC": 42.36,
        "AT: tight": None,
    }
    assert row.differences[0].paper == -20.39
    dverge = {r.name: r for r in item_named("figure4").rows}["eps"]
    at_8 = {reading.column: reading.paper for m in dverge.measurements if m.x == 8 for reading in m.readings}
    assert (at_8["APGD"], at_8["ARC"]) == (43.36, 14.88)


def test_attacks_have_the_papers_settings() -> None:
    assert (budget("cifar10").steps, budget("imagenet").steps) == (20, 50)
    assert [budget(data).planes for data in ("svhn", "cifar10", "cifar100", "imagenet")] == [None, None, 4, 4]
    assert radius("8/255") == 8 / 255
    free = bat("imagenet", "l2").start
    assert free is not None and (free.method, free.eps, free.arch) == ("free", "76/255", "resnet18")
    assert {row.eps for row in ITEMS["table2"].rows if row.name == "imagenet-linf"} == {"4/255"}


def all_measurements() -> list[tuple[str, Measurement]]:
    return [(row.norm, m) for item in ITEMS.values() for row in item.rows for m in row.measurements]


def test_recipes_are_consistent() -> None:
    for _, m in all_measurements():
        if m.members is not None:
            assert m.alpha is not None and len(m.alpha) == len(m.members)
        assert m.extra == isinstance(m.attack, Tight)
        if isinstance(m.attack, ARC):
            assert m.attack.variant == ("corrected" if m.readings[0].column == "corrected ARC" else "paper")
    for item in ITEMS.values():
        assert len({row.name for row in item.rows}) == len(item.rows)
        assert shown(item, "fast") and shown(item, "paper")  # a net or method without a cost would raise


def test_every_ensemble_has_a_command_that_makes_it() -> None:
    for ensemble in ensembles():
        words = command_for(ensemble, "paper").split()
        item, row = item_named(words[3]), words[5]
        assert next(r for r in item.rows if r.name == row).ensemble.name == ensemble.name


def test_what_the_zoo_ships_is_what_recipes_make() -> None:
    recipes = {ensemble.name for ensemble in ensembles()}
    for entry in zoo.entries():
        # No item of the paper evaluates AT or IAT on their own, nor the demo's members on digits.
        if entry.provenance["method"] not in ("at", "iat") and entry.provenance["data"] != "digits":
            assert entry.made in recipes


def test_the_zoo_lists_the_command_of_every_ensemble() -> None:
    """`recarc zoo list` cannot import the paper, so its index repeats the commands."""
    assert zoo.recipes() == training_commands()


def test_unknown_items_and_rows_are_named() -> None:
    with pytest.raises(InputError, match="did you mean 'table1'"):
        item_named("tabel1")
    with pytest.raises(InputError, match="unknown row of table3 'linv'"):
        rows_of(item_named("table3"), ["linv"])
