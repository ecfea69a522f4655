"""Runs as a report sees them: an evaluation with its name and environment; the attacks' labels, order and colours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from recarc.attacks import registry
from recarc.attacks.tight import EXTRA
from recarc.errors import InputError
from recarc.evaluation.fingerprint import Json, canonical, eps_text, fingerprint
from recarc.evaluation.result import Evaluation
from recarc.evaluation.run_folder import CERTIFICATE, RUN, RunFolder

T = TypeVar("T")
BEST_MEMBER, CERTIFIED = "Best member alone", "Certified floor"
# Stages of Tight that say what one attack alone reports; the other stages are the best so far.
ATTACK_OF_STAGE = {"adaptive_pgd": "AdaptivePGD", "arc": "ARC"}
STAGE_LABELS = {
    "clean": "no attack needed",
    "adaptive_pgd": "AdaptivePGD",
    "arc": "ARC",
    "members": "AutoPGD on a member",
    "square": "Square on a member",
    "members_apart": "Members of a vote",
    "corrected_arc": "ARC, corrected",
    "lattice_climber": "Lattice climber",
    "climb": "Climb",
    **{f"round_{r}": f"Climb, round {r}" for r in range(1, 10)},
    "restarts": "Climb, all rounds",
    "challenge": "the challenge",
    "none": "no attack succeeded",
}
# The roles are the colours of the page (templates/page.css) and of the figures (figures.COLOURS).
ROLES = {
    "Clean": "clean",
    "PGD": "pgd",
    "AdaptivePGD": "adaptive",
    "ARC": "arc",
    "Tight": "tight",
    "Floor": "floor",
    CERTIFIED: "floor",
    BEST_MEMBER: "best",
}
PALETTE = ("tight", "arc", "floor", "best", "adaptive", "pgd", "clean")  # the same colours for whole ensembles
FIRST = ("Clean", "PGD", "AdaptivePGD", "ARC")
LAST = ("Tight", "Floor", CERTIFIED, BEST_MEMBER)  # all others in between


def attack_stages(stages: Iterable[str]) -> dict[str, str]:
    """The stages that are attacks by themselves, with their labels: those above, and the user's own (`Tight.extra`)."""
    own = {stage: stage.removeprefix(EXTRA) for stage in stages if stage.startswith(EXTRA)}
    return {stage: label for stage, label in ATTACK_OF_STAGE.items() if stage in stages} | own


@dataclass(frozen=True)
class Run:
    """One run folder, or an evaluation that was never saved; `given` is what the user calls its ensemble."""

    name: str
    evaluation: Evaluation
    environment: Json = field(default_factory=dict)
    given: str = ""

    @property
    def configuration(self) -> Json:
        return self.evaluation.configuration

    @property
    def attack(self) -> Json:
        config = self.configuration.get("attack")
        if isinstance(config, dict) and "class" in config:
            return config
        function = config.get("function") if isinstance(config, dict) else config
        return {"class": str(function or "attack")}

    @property
    def label(self) -> str:
        """The attack's name as people say it."""
        return registry.label(self.attack)

    @property
    def ball(self) -> Json:
        return self.configuration.get("ball") or {}

    @property
    def data(self) -> Json:
        return self.configuration.get("data") or {}

    @property
    def alpha(self) -> list[float]:
        return [float(a) for a in self.evaluation.alpha]

    @property
    def eps(self) -> float | None:
        """The radius; None where every sample has its own."""
        eps = self.ball.get("eps")
        return float(eps) if isinstance(eps, (int, float)) else None

    @property
    def problem(self) -> str:
        """What was attacked, whatever the attack: runs that share it can be compared sample by sample."""
        return self._identity("ball", "alpha", "members", "data")

    @property
    def geometry(self) -> str:
        """The problem at any alpha: a perturbation found in one such run is allowed in another."""
        return self._identity("ball", "members", "data")

    @property
    def ensemble(self) -> str:
        """As given or typed; where that is not known, such as in Python, what tells its members from others."""
        if self.given:
            return self.given
        typed = re.match(r"recarc (?:evaluate|sweep) (?:'([^']+)'|([^-\s'\"]\S*))", self.command)
        if typed is not None:
            return typed[1] or typed[2]
        if self.command.startswith("recarc demo"):
            return "of the demo"
        return f"unnamed ({fingerprint(self.configuration.get('members'))[:8]})"

    @property
    def subject(self) -> str:
        """What was attacked, in words: the ensemble, or the one classifier that was made of it."""
        made = re.search(r" --(average|vote)(?= |$)", self.command)
        if made is None or self.given:
            return self.ensemble
        return f"{self.ensemble}, {'averaged' if made[1] == 'average' else 'majority vote'}"

    @property
    def data_text(self) -> str:
        split = f" {self.data['split']}" if self.data.get("split") else ""
        return f"{self.data.get('name', 'unknown')}{split}, {len(self.evaluation):,} samples"

    @property
    def ball_text(self) -> str:
        return f"{self.ball.get('norm', '')} eps {eps_text(self.eps) if self.eps is not None else 'per sample'}"

    @property
    def alpha_text(self) -> str:
        return " / ".join(f"{a:.3g}" for a in self.alpha)

    def differences(self, other: Run) -> str:
        """What keeps this run from being compared with another, and what it is here."""
        parts = {
            "data": f"other data ({self.data_text})",
            "members": f"another ensemble ({self.subject})",
            "ball": f"another ball ({self.ball_text})",
            "alpha": f"another alpha ({self.alpha_text})",
        }
        return ", ".join(text for key, text in parts.items() if self._identity(key) != other._identity(key))

    def equals(self, other: Run) -> bool:
        """Whether it is the same attack on the same problem with the same outcome, such as a point of a sweep."""
        one, two = (run._identity("ball", "alpha", "members", "data", "attack", "precision") for run in (self, other))
        mine, theirs = (run.evaluation.adversarial_predictions for run in (self, other))
        return one == two and np.array_equal(mine, theirs)

    def _identity(self, *keys: str) -> str:
        return canonical({key: self.configuration.get(key) for key in keys})

    @property
    def command(self) -> str:
        """The command that was typed; "" for a run that Python started."""
        return str(self.environment.get("command") or "")


def load_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Every run folder among or below these paths, in a stable order; the same run twice counts once.

    `NAME=PATH` gives the ensemble of those runs a name.
    """
    runs: dict[Path, Run] = {}
    for given, path in map(_named, paths):
        for folder, name in _folders(path):
            if folder.resolve() not in runs:
                environment = RunFolder.open(folder).run.get("environment") or {}
                runs[folder.resolve()] = Run(name, Evaluation.load(folder, partial=True), dict(environment), given)
    if not runs:
        raise InputError("no runs were given; name at least one run folder")
    return list(runs.values())


def _named(path: str | Path) -> tuple[str, Path]:
    """NAME=PATH, unless there is a folder of just that name."""
    name, equals, rest = str(path).partition("=")
    return (name, Path(rest)) if equals and name and rest and not Path(path).exists() else ("", Path(path))


Given = Run | Evaluation | str | Path


def as_runs(given: Given | Sequence[Given] | Mapping[str, Given]) -> list[Run]:
    """Runs as they are, evaluations by the name of their folder, and those in folders; a mapping names ensembles."""
    if isinstance(given, Mapping):
        return [replace(run, given=name) for name, value in given.items() for run in as_runs(value)]
    if isinstance(given, (str, Path)):
        return load_runs([given])
    if isinstance(given, Run):
        return [given]
    if isinstance(given, Evaluation):
        return [Run(given.path.name if given.path else "in memory", given)]
    if not isinstance(given, Sequence):
        raise InputError(f"runs holds a {type(given).__name__}; expected evaluations or run folders")
    if not given:
        raise InputError("a report needs at least one run")
    return [run for item in given for run in as_runs(item)]


def _folders(path: Path) -> list[tuple[Path, str]]:
    if (path / RUN).exists():
        return [(path, path.name or str(path))]
    if not path.is_dir():
        raise InputError(f"{path} does not exist; expected a run folder (with {RUN}) or a folder of them")
    found = (file.parent for file in path.rglob(RUN) if file.parent.name != CERTIFICATE)
    folders = sorted(found, key=lambda p: _natural(str(p.relative_to(path))))
    if not folders:
        raise InputError(f"{path} contains no run: expected {RUN} in it or below it")
    return [(folder, str(folder.relative_to(path))) for folder in folders]


def _natural(text: str) -> list[Any]:
    """Sorts eps=2 before eps=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts)]


def role(label: str) -> str:
    return ROLES.get(label, "other")


def position(label: str) -> int:
    """Sorts from the clean accuracy over ever stronger attacks to the floor."""
    if label in FIRST:
        return FIRST.index(label)
    return len(FIRST) + 1 + LAST.index(label) if label in LAST else len(FIRST)


def numbered(labelled: Iterable[tuple[str, T]]) -> dict[str, T]:
    """As a dictionary, in which a label that comes again gets a number: ARC, ARC (2), ARC (3)."""
    unique: dict[str, T] = {}
    for label, value in labelled:
        name, number = label, 2
        while name in unique:
            name, number = f"{label} ({number})", number + 1
        unique[name] = value
    return unique
