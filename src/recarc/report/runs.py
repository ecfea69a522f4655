"""Runs as a report sees them: an evaluation with a name, its environment and the command that repeats it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recarc.attacks.registry import attack_named, label, names
from recarc.errors import InputError
from recarc.evaluation.fingerprint import Json, canonical, described
from recarc.evaluation.result import Evaluation
from recarc.evaluation.run_folder import RUN, RunFolder

ORDER = ("PGD", "AdaptivePGD", "ARC")  # then the others, then Tight
OPTIONS = ("preset", "steps", "step_size", "planes", "loss", "seed")  # of `recarc evaluate`


@dataclass(frozen=True)
class Run:
    """One run folder (or an evaluation that was never saved)."""

    name: str
    evaluation: Evaluation
    environment: Json = field(default_factory=dict)

    @property
    def configuration(self) -> Json:
        return self.evaluation.configuration

    @property
    def attack(self) -> Json:
        told = self.configuration.get("attack")
        return told if isinstance(told, dict) else {"class": str(told or "attack")}

    @property
    def title(self) -> str:
        """The attack's name as people say it."""
        return label(self.attack)

    @property
    def alpha(self) -> list[float]:
        return [float(a) for a in self.evaluation.alpha]

    @property
    def eps(self) -> float | None:
        eps = (self.configuration.get("ball") or {}).get("eps")
        return float(eps) if isinstance(eps, (int, float)) else None

    @property
    def problem(self) -> str:
        """What was attacked, whatever the attack: runs that share it can be compared sample by sample."""
        told = {key: self.configuration.get(key) for key in ("ball", "alpha", "members", "data")}
        return canonical(told)

    @property
    def geometry(self) -> str:
        """As `problem`, but for any alpha: perturbations of one such run are allowed in another."""
        return canonical({key: self.configuration.get(key) for key in ("ball", "members", "data")})

    def command(self, ensemble: str = "ENSEMBLE") -> str:
        """The command line that repeats the run; as it was typed, where the run says so."""
        typed = self.environment.get("command")
        return str(typed) if typed else rebuilt_command(self, ensemble)


def place(title: str) -> int:
    """Sorts attacks from the usual to the strongest."""
    return ORDER.index(title) if title in ORDER else len(ORDER) + (title == "Tight")


def rebuilt_command(run: Run, ensemble: str) -> str:
    """From the configuration, which knows all but where the ensemble's folder is; "" where no command says it."""
    told = run.configuration
    data, ball = told.get("data") or {}, told.get("ball") or {}
    knobs = _knobs(run.attack)
    kind = command_name(run.attack, knobs)
    if kind is None or not told or data.get("name") == "tensors":
        return ""
    words = ["recarc", "evaluate", ensemble, "--data", str(data.get("name"))]
    words += ["--norm", str(ball.get("norm")), "--eps", _typed(run.eps) if run.eps is not None else "EPS"]
    words += ["--alpha", ",".join(map(_typed, run.alpha)), "--attack", kind]
    for option, value in knobs.items():
        words += [f"--{option.replace('_', '-')}"]
        words += [] if value is True else [_typed(value) if isinstance(value, float) else str(value)]
    words += ["--limit", str(data.get("samples"))]
    words += ["--split", str(data["split"])] if data.get("split") not in (None, "test") else []
    box = ball.get("box")
    words += [] if box == [0.0, 1.0] else ["--box", "none" if box is None else ",".join(map(_typed, box))]
    precision = told.get("precision")
    words += ["--precision", str(precision)] if precision not in (None, "as the members", "float32") else []
    words += ["--save-inputs"] if told.get("save_inputs") else []
    return shlex.join([*words, "--out", run.name])


def command_name(attack: Json, knobs: Json) -> str | None:
    """The name by which the command line makes just this attack from these knobs; None: it cannot."""
    for name in names():
        try:
            made = attack_named(name, **knobs)
        except InputError:  # a knob that the attack does not have
            continue
        if canonical(described(made)) == canonical(attack):
            return name
    return None


def _knobs(attack: Json) -> Json:
    """What is set of the options that the command line has for attacks."""
    drawn = attack.get("attack") if attack.get("class") == "RandomAttacker" else None
    told = drawn if isinstance(drawn, dict) else attack
    knobs = {option: told[option] for option in OPTIONS if told.get(option) is not None}
    return knobs | ({"random_init": True} if told.get("random_init") is True else {})


def _typed(value: float) -> str:
    """A number as people type it, exact to the last bit: 8/255 where it is that, else 0.9."""
    pixels = round(value * 255)
    if len(repr(value)) > 6 and pixels / 255 == value:
        return f"{pixels}/255"
    return repr(int(value)) if value == int(value) else repr(value)


def load_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Every run folder among or below these paths, in a stable order; the same run twice counts once."""
    runs: list[Run] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        for folder, name in _folders(path):
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                environment = RunFolder.open(folder).run.get("environment") or {}
                runs.append(Run(name, Evaluation.load(folder, partial=True), dict(environment)))
    if not runs:
        raise InputError("no runs were given; name at least one run folder")
    return runs


def _folders(path: Path) -> list[tuple[Path, str]]:
    if (path / RUN).exists():
        return [(path, path.name or str(path))]
    if not path.is_dir():
        raise InputError(f"{path} does not exist; expected a run folder (with {RUN}) or a folder of them")
    found = sorted((file.parent for file in path.rglob(RUN)), key=lambda p: _natural(str(p.relative_to(path))))
    if not found:
        raise InputError(f"{path} holds no run: expected {RUN} in it or below it")
    return [(folder, str(folder.relative_to(path))) for folder in found]


def _natural(text: str) -> list[Any]:
    """Sorts eps=2 before eps=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts)]
