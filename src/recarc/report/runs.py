"""Runs as a report sees them: an evaluation with its name, its environment and how to repeat it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recarc.attacks import registry
from recarc.errors import InputError
from recarc.evaluation.fingerprint import Json, canonical
from recarc.evaluation.result import Evaluation
from recarc.evaluation.run_folder import RUN, RunFolder


@dataclass(frozen=True)
class Run:
    """One run folder, or an evaluation that was never saved."""

    name: str
    evaluation: Evaluation
    environment: Json = field(default_factory=dict)

    @property
    def configuration(self) -> Json:
        return self.evaluation.configuration

    @property
    def attack(self) -> Json:
        config = self.configuration.get("attack")
        return config if isinstance(config, dict) else {"class": str(config or "attack")}

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

    def _identity(self, *keys: str) -> str:
        return canonical({key: self.configuration.get(key) for key in keys})

    def command(self, ensemble: str = "ENSEMBLE") -> str:
        """The command that was typed; for a run that Python started, the call that repeats it."""
        return str(self.environment.get("command") or self._python_call(ensemble))

    def _python_call(self, ensemble: str) -> str:
        """One line of Python; "" where the configuration does not say it all: a function as attack, a radius each."""
        eps, box, data, config = self.eps, self.ball.get("box"), self.data, self.configuration
        if eps is None or "class" not in (config.get("attack") or ""):
            return ""
        pixels = round(255 * eps)
        radius = f"{pixels} / 255" if pixels / 255 == eps and len(repr(eps)) > 6 else repr(eps)
        images = f"load({data.get('name')!r}, {data.get('split')!r}, limit={data.get('samples')})"
        arguments = [
            f"load_ensemble({ensemble!r}).with_alpha({self.alpha})",
            _python(self.attack),
            images if data.get("split") else "data",
            f"Ball({self.ball.get('norm')!r}, {radius}, {tuple(box) if box else None})",
            f"out={self.name!r}",
        ]
        arguments += [f"precision={p!r}"] if (p := config.get("precision")) not in (None, "as the members") else []
        arguments += ["save_inputs=True"] if config.get("save_inputs") else []
        return f"evaluate({', '.join(arguments)})"


def _python(value: Any) -> str:
    """A described attack as Python: ARC(steps=20, planes=4)."""
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    knobs = (f"{name}={_python(knob)}" for name, knob in value.items() if name != "class" and knob is not None)
    return f"{value.get('class')}({', '.join(knobs)})"


def load_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Every run folder among or below these paths, in a stable order; the same run twice counts once."""
    runs: dict[Path, Run] = {}
    for path in map(Path, paths):
        for folder, name in _folders(path):
            if folder.resolve() not in runs:
                environment = RunFolder.open(folder).run.get("environment") or {}
                runs[folder.resolve()] = Run(name, Evaluation.load(folder, partial=True), dict(environment))
    if not runs:
        raise InputError("no runs were given; name at least one run folder")
    return list(runs.values())


def _folders(path: Path) -> list[tuple[Path, str]]:
    if (path / RUN).exists():
        return [(path, path.name or str(path))]
    if not path.is_dir():
        raise InputError(f"{path} does not exist; expected a run folder (with {RUN}) or a folder of them")
    folders = sorted((file.parent for file in path.rglob(RUN)), key=lambda p: _natural(str(p.relative_to(path))))
    if not folders:
        raise InputError(f"{path} contains no run: expected {RUN} in it or below it")
    return [(folder, str(folder.relative_to(path))) for folder in folders]


def _natural(text: str) -> list[Any]:
    """Sorts eps=2 before eps=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts)]
