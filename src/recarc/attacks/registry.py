"""Attacks by the name that the command line gives them; light, since each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from recarc.errors import InputError, unknown


@dataclass(frozen=True)
class Named:
    """A class (`module:Class` below recarc.attacks), the knobs its name fixes, and whether it attacks one member."""

    home: str
    says: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    random_member: bool = False


ATTACKS: dict[str, Named] = {
    "tight": Named("tight:Tight", "staged, down to the floor (presets quick, standard, thorough)"),
    "arc": Named("arc:ARC", "Algorithm 2 of the paper"),
    "corrected_arc": Named("arc:ARC", "ARC with the distance its proof needs", {"variant": "corrected"}),
    "climb": Named("climb:Climb", "adds one fooled member after another"),
    "adaptive_pgd": Named("adaptive_pgd:AdaptivePGD", "PGD on the expected loss (the paper's APGD)"),
    "pgd": Named("pgd:PGD", "PGD on a member drawn with alpha, in exact expectation", random_member=True),
    "pgd1": Named("pgd:PGD", "PGD on the first member (the paper's PGD-1)", {"member": 0}),
    "autopgd": Named("autopgd:AutoPGD", "Croce and Hein's APGD on the expected loss"),
    "cw": Named("carlini_wagner:CarliniWagner", "Carlini and Wagner, adapted to the expectation"),
    "linear_arc": Named("linear_arc:LinearARC", "Algorithm 1, for linear members"),
}
DEFAULT = "tight"


def attack_named(name: str, restarts: int = 1, **given: Any) -> Any:
    """The attack with the knobs that were given (None: its own default)."""
    if name == "apgd":
        raise InputError("APGD has two meanings: adaptive_pgd is the paper's, autopgd that of Croce and Hein")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    named = ATTACKS[name]
    module, _, cls = named.home.partition(":")
    make = getattr(import_module(f"recarc.attacks.{module}"), cls)
    known = {f.name for f in fields(make)} - set(named.fixed)
    knobs = {key: value for key, value in given.items() if value is not None}
    for key in knobs:
        if key not in known:
            option = "--" + key.replace("_", "-")
            raise InputError(f"{option} does not apply to the attack {name!r}; leave it out")
    if restarts > 1 and "random_init" in known:
        knobs["random_init"] = True
    attack = make(**named.fixed, **knobs)
    if restarts != 1:
        from recarc.attacks import Restarts

        attack = Restarts(attack, n=restarts)
    if named.random_member:
        from recarc.attacks import RandomAttacker

        if restarts != 1:
            raise InputError(f"--restarts does not apply to the attack {name!r}; use adaptive_pgd or pgd1")
        attack = RandomAttacker(attack)
    return attack
