"""What a run must be before it counts: on the board's problem, finished, as strong as Tight is, of these weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from torch import nn

from recarc import __version__
from recarc.attacks import Tight
from recarc.board.boards import Board
from recarc.ensemble import RandomizedEnsemble, frozen
from recarc.errors import InputError
from recarc.evaluation.fingerprint import attack_text, eps_text, module_hash
from recarc.evaluation.resume import SAVED_SAMPLES, FirstLogits
from recarc.evaluation.run_folder import SUMMARY, RunFolder
from recarc.evaluation.samples import Samples
from recarc.evaluation.tiling import reproducible
from recarc.report.runs import Run

PRESETS = ("standard", "thorough")
DISAGREE = 0.001  # of the samples may contradict themselves, as in coarse searches that an older judge scored
ADAPTED = ("preset", "seed", "challenge", "masked", "extra")  # an evaluation sets them, or they only add to the attack


def check_run(run: Run, board: Board) -> None:
    """On the board's problem, finished, by an attack that is strong enough, of members that repeat themselves."""
    data, norm = (run.data.get("name"), run.data.get("split")), str(run.ball.get("norm"))
    if data != (board.data, board.split):
        other = (
            "" if board.rows else "; for another one write Board(data, split, {norm: eps}).write(FILE) in Python first"
        )
        raise InputError(f"{run.name} is on {run.data_text}; this board is on {board.data} {board.split}{other}")
    if norm not in board.eps or run.eps is None or abs(run.eps - board.eps[norm]) > 1e-9:
        balls = " and ".join(f"{name} eps {eps_text(eps)}" for name, eps in board.eps.items())
        raise InputError(f"{run.name} is in {run.ball_text}; this board is in {balls}")
    if run.ball.get("box") != [0.0, 1.0]:
        raise InputError(f"{run.name} has the box {run.ball.get('box')}; this board has images in [0, 1]")
    _check_effort(run)


def _check_effort(run: Run) -> None:
    """Finished, by an attack that is strong enough, of members that repeat themselves."""
    if not run.evaluation.complete:
        raise InputError(f"{run.name} is not finished; rerun its command to resume")
    tight = _tight_within(run.attack)
    if tight is None:
        raise InputError(f"{run.name} used {attack_text(run.attack)}; a row needs --attack tight")
    if tight.get("preset") not in PRESETS:
        raise InputError(f"{run.name} used the preset {tight.get('preset')}; a row needs {' or '.join(PRESETS)}")
    for name, given, needed in _weaker_knobs(tight):
        raise InputError(f"{run.name} used {name}={given}; a row needs {needed}: evaluate without that knob of Tight")
    folder = RunFolder.open(run.evaluation.path or run.name)
    noted = {(signal.member, signal.name) for signal in run.evaluation.signals}
    if not folder.summary().get("complete") or not {*map(tuple, tight.get("masked") or ())} <= noted:
        raise InputError(f"the {SUMMARY} of {run.name} is missing, or is not that of its run: rerun its command")
    if len(run.evaluation.adversarial_predictions) != 1:
        raise InputError(f"{run.name} has several attacked inputs for each sample; a row needs one")
    alone = run.evaluation.alone
    if alone is not None:
        most = np.where(alone, np.inf, 1 - run.evaluation.alpha[:, None]).min(0)
        over = int((run.evaluation.robust_scores > most + 1e-6).sum())
        if over > DISAGREE * len(run.evaluation):
            raise InputError(
                f"the records of {run.name} contradict themselves: on {over} samples a member was fooled "
                "alone, and yet the ensemble keeps more than the others' alpha"
            )
    if None in folder.first_logits:
        raise InputError(f"a member of {run.name} is random: it gives one input different logits, so nothing is exact")


def _weaker_knobs(tight: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(name, value, what is needed) of each knob that may make a described `Tight` weaker than its preset is."""
    usual = Tight()
    for name in (knob.name for knob in fields(Tight)):
        given, own = tight.get(name, getattr(usual, name)), getattr(usual, name)
        if name == "steps":
            if not isinstance(given, int) or given < own:
                yield name, given, f"{own} or more"
        elif name not in ADAPTED and given != own:
            yield name, given, str(own)


def _tight_within(attack: Any) -> dict[str, Any] | None:
    """The description of recarc's own `Tight`, alone or where the worst of several attacks or runs is kept."""
    if not isinstance(attack, dict) or "class_code" in attack:  # a class of the user's own, whatever its name
        return None
    if attack.get("class") == "Tight":
        return attack
    if attack.get("class") == "WorstOf":
        return next((found for part in attack["attacks"] if (found := _tight_within(part))), None)
    if attack.get("class") == "Restarts":
        return _tight_within(attack.get("attack"))
    return None


def check_members(run: Run, rec: RandomizedEnsemble, samples: Samples) -> str:
    """The members are those of the run, and how that is known; an InputError if they are not."""
    known = members_agree(run, rec, samples)
    if known:
        return known
    raise InputError(f"the weights are not those that {run.name} attacked: they changed since, or are another's")


def members_agree(run: Run, rec: RandomizedEnsemble, samples: Samples) -> str:
    """By the members' hashes or, if another version of recarc made these, their answers; nothing if they differ."""
    found = [module_hash(member) for member in rec.members if isinstance(member, nn.Module)]
    if found == run.configuration.get("members"):
        return "the hashes agree"
    version = run.environment.get("recarc")
    saved = RunFolder.open(run.evaluation.path or run.name).first_logits
    if version != __version__ and len(saved) == len(rec) and all(saved):
        x = samples.batch(np.arange(SAVED_SAMPLES))[0].to(rec.device_of_members())
        with frozen(rec), reproducible(x.device):
            logits = rec.logits(x)
        if not FirstLogits.of(rec, logits, logits).changes_from(saved):
            return f"recarc {version} hashed otherwise; the first logits agree"
    return ""
