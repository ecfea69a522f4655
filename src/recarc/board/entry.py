"""What an entry must pass before it becomes a row: its run is judged again, and part of it attacked again."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.attacks import PGD, RandomAttacker, Tight
from recarc.board.boards import Board
from recarc.board.checks import check_members, check_run
from recarc.board.names import method_name, trained_name
from recarc.board.rivals import Rival, is_rival, rows_of_rival
from recarc.board.rows import Json, Place, Row
from recarc.board.scoring import best_of, row_of
from recarc.ensemble import RandomizedEnsemble, frozen
from recarc.errors import InputError, first_line
from recarc.evaluation.engine import evaluate
from recarc.evaluation.fingerprint import eps_text
from recarc.evaluation.intervals import p_value, paired_interval
from recarc.evaluation.masking import Signal
from recarc.evaluation.result import Evaluation
from recarc.evaluation.run_folder import RunFolder
from recarc.evaluation.samples import Samples
from recarc.evaluation.tiling import reproducible
from recarc.geometry import Ball
from recarc.models import load_ensemble
from recarc.models.store import ensemble_folder
from recarc.report.gallery import attacked_samples
from recarc.report.runs import Run, load_runs

AGAIN = 64  # samples that are attacked again, at least
# What is found again is another figure than the run's if the difference is clear, though there are many comparisons,
# and larger than what a run of more effort than `Tight()` would make of members alone.
CLEARLY, MATTERS = 0.001, 0.01
# Of the gain on samples that gain, so much must be found again, unless these are few or what is lacking is little.
FOUND, FEW, LITTLE = 0.75, 10, 0.002
AGREES = 0.001  # by how much the accuracy of the saved inputs may differ on another machine
BATCH = 256


@dataclass(frozen=True)
class Entry:
    """An ensemble and its run, as they were handed in."""

    run: Run
    ensemble: RandomizedEnsemble
    samples: Samples

    @property
    def ball(self) -> Ball:
        box = self.run.ball.get("box")
        return Ball(str(self.run.ball["norm"]), float(self.run.eps or 0.0), None if box is None else tuple(box))


def check_entry(
    path: str | Path,
    board: Board,
    ensemble: str | Path | None = None,
    method: str | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str = "cpu",
    again: int = AGAIN,
    seed: int | None = None,
    alpha_by: str | None = None,
    trust_code: bool = False,
    replacing: bool = False,
) -> Row | Rival:
    """The row of a run on the board's data, or a rival of rows; an InputError of one line says why there is none.

    The weights must be those of the run; saved inputs are judged again in float32; `again` samples, drawn now, are
    attacked again by `Tight`, which must not find clearly more than the run did, nor clearly other figures of clean
    images, AdaptivePGD, ARC or a member alone. `trust_code` as in `load_ensemble`, `replacing` as in `Board.with_row`.
    """
    if again < AGAIN:
        raise InputError(f"again is {again}; at least {AGAIN} samples must be attacked again")
    run = one_run(path)
    check_run(run, board)
    folder = ensemble_folder(ensemble if ensemble is not None else run.ensemble)
    rec, samples = load_ensemble(folder, device, trust_code=trust_code), attacked_samples(run.data, data_dir)
    drawn = secrets.randbits(32) if seed is None else seed
    if is_rival(run, rec):
        name, rows, rival = rows_of_rival(run, rec, samples, board)
        if method is not None or alpha_by is not None:
            given = "--method" if method is not None else "--alpha-by"
            raise InputError(f"{run.name} is a run of the {name} of a row, whose name and alpha it has; omit {given}")
        checked, signals = _checked(Entry(run, rival, samples), again, drawn)
        known = {**_measured(run), "signals": sorted({signal.name for signal in signals}), "checked": checked}
        return Rival(name, tuple(rows), run.evaluation.robust_scores, known)
    rec = rec.with_alpha(run.alpha)
    made_by = rec.made_by
    try:
        method = trained_name(made_by, folder.name) if method is None else method_name(method)
        training, minutes = training_command(made_by), training_minutes(made_by)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"what {folder} says of its training cannot be read ({first_line(error)})") from None
    check_members(run, rec, samples)
    seed_of, weights, count = made_by.get("seed", 0), run.configuration["members"], len(run.evaluation)
    place = Place(method, str(run.ball["norm"]), run.alpha, seed_of, count, training, weights)
    board.check_place(place, replacing)
    entry = Entry(run, rec, samples)
    checked, signals = _checked(entry, again, drawn)
    return row_of(
        replace(run, evaluation=replace(run.evaluation, signals=signals)),
        method,
        flops=flops(rec, entry.samples),
        cross=cross_robustness(entry, again, drawn),
        minutes=minutes,
        provenance={**_measured(run), **_trained(run, made_by), "alpha_by": alpha_by, "checked": checked},
    )


def _trained(run: Run, made_by: Mapping[str, Any]) -> Json:
    """What the members are and how they were trained."""
    machine = made_by.get("machine")
    return {
        "weights": run.configuration["members"],
        "trained": {key: made_by[key] for key in ("method", "arch", "norm", "seed", "commit") if key in made_by},
        "training": training_command(made_by),
        "trained_on": machine.get("device") if isinstance(machine, dict) else None,
        "seed": made_by.get("seed", 0),
    }


def _measured(run: Run) -> Json:
    """How and where a run was made."""
    return {
        "command": without_folders(run.command),
        **{key: run.environment.get(key) for key in ("commit", "hardware", "torch", "recarc")},
        "run": run.evaluation.configuration.get("attack"),
        "precision": run.configuration.get("precision"),
        "seconds": round(run.evaluation.seconds, 1),
    }


def _checked(entry: Entry, again: int, seed: int) -> tuple[Json, list[Signal]]:
    """What was found where the run was checked, in words, and every signal of masked gradients, old and new."""
    checked = {
        "weights": check_members(entry.run, entry.ensemble, entry.samples),
        "inputs": judged_again(entry),
    }
    rows, known = drawn_rows(entry, again, seed), entry.run.evaluation.signals
    found = evaluate(entry.ensemble, Tight(), entry.samples.batch(rows), entry.ball, progress=False)
    checked["attacked_again"] = found_again(entry.run, rows, found, seed)
    signals = [*found.signals]
    gaining = drawn_gains(entry.run, again, seed)
    if len(gaining):
        found = evaluate(entry.ensemble, Tight(), entry.samples.batch(gaining), entry.ball, progress=False)
        checked["gain_again"] = gain_again(entry.run, gaining, found)
        signals += found.signals
    noted = {(signal.member, signal.name) for signal in known}
    fresh = {(signal.member, signal.name): signal for signal in signals}
    return checked, [*known, *(signal for pair, signal in fresh.items() if pair not in noted)]


def one_run(path: str | Path) -> Run:
    """The one run in a folder or below it; of several, the tight one on the most samples, drawn before combined."""
    runs = tight_runs(path)
    if not runs:
        raise InputError(f"{path} has no run of a tight attack; make one: recarc evaluate ... --attack tight --out DIR")
    return runs[0]


def tight_runs(path: str | Path) -> list[Run]:
    """The tight runs in a folder or below it; the one that counts first."""
    runs = [run for run in load_runs([path]) if run.evaluation.alone is not None]
    return sorted(runs, key=lambda run: (len(run.evaluation), len(run.alpha)), reverse=True)


def judged_again(entry: Entry) -> str:
    """The saved inputs, inside the ball and the box, give the run's accuracy again; or that there are none."""
    run, worst, right = entry.run, 0.0, []
    if not run.configuration.get("save_inputs"):
        return "not saved"
    if not any(Path(run.evaluation.path or run.name).glob("*.inputs.safetensors")):
        return "not handed in"
    for rows, x_adv in saved_inputs(run):
        x, y = (t.to(entry.ensemble.device_of_members()) for t in entry.samples.batch(rows))
        x_adv = x_adv.to(x.device)
        excess = entry.ball.violation(x.double(), x_adv.double()) - entry.ball.tolerance(x.double())
        worst = max(worst, float(excess.max()))
        with frozen(entry.ensemble), reproducible(x.device):
            right.append(entry.ensemble.expected_accuracy(x_adv, y).cpu().numpy())
    if worst > 0:
        raise InputError(f"the saved inputs of {run.name} leave the ball or the box, by {worst:.3g}")
    accuracy = float(np.concatenate(right).mean())
    if abs(accuracy - run.evaluation.robust_accuracy) > AGREES:
        raise InputError(
            f"judged again, the saved inputs of {run.name} leave {100 * accuracy:.2f} %, "
            f"not {100 * run.evaluation.robust_accuracy:.2f} %"
        )
    return f"{100 * accuracy:.2f} % again"


def saved_inputs(run: Run) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batches of (rows, adversarial inputs); files that differ from their checksum are refused."""
    from safetensors.torch import load_file

    assert run.evaluation.path is not None
    folder = RunFolder.open(run.evaluation.path)
    for k in range(folder.shards):
        try:
            folder.read(k, inputs=True)
            x_adv = load_file(folder.file(k, "inputs.safetensors"))["x_adv"][:, 0]
            if len(x_adv) != len(folder.rows_of(k)):
                raise ValueError(f"{len(x_adv)} of {len(folder.rows_of(k))} inputs")
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"the inputs of {run.name} are damaged ({error}); rerun its command") from None
        rows = np.array(folder.rows_of(k))
        for start in range(0, len(rows), BATCH):
            yield rows[start : start + BATCH], x_adv[start : start + BATCH]


def found_again(run: Run, rows: np.ndarray, found: Evaluation, seed: int) -> str:
    """What another attack found on these rows; the run must not claim clearly more, nor other figures of its parts."""
    said, now = run.evaluation.robust_scores[rows], found.robust_scores
    again = f"attacked again, {len(rows)} samples of {run.name} keep"
    if paired_interval(said - now)[0] > 0 and (said - now).any():
        raise InputError(f"{again} {100 * now.mean():.2f} % where the run says {100 * said.mean():.2f} %")
    for name, claimed, seen in _parts(run.evaluation, rows, found):
        gap = claimed - seen
        if abs(gap.mean()) > MATTERS and p_value(*paired_interval(gap)) < CLEARLY:
            raise InputError(
                f"{again} {100 * seen.mean():.2f} % ({name}) where the run says {100 * claimed.mean():.2f} %"
            )
    sample = "sample" if len(rows) == 1 else "samples"
    words = f"{len(rows)} {sample} (seed {seed}): {100 * now.mean():.2f} %, in the run {100 * said.mean():.2f} %"
    if len(found.alpha) == 1:
        return words
    name, claimed, seen = max(_alone(run.evaluation, rows, found), key=lambda part: float(part[1].mean()))
    return f"{words}; {name} {100 * seen.mean():.2f} %, in the run {100 * claimed.mean():.2f} %"


def drawn_gains(run: Run, count: int, seed: int) -> np.ndarray:
    """Some of the samples on which the ensemble keeps more than its best member alone: its gain rests on these."""
    if len(run.alpha) == 1:
        return np.arange(0)
    gaining = np.flatnonzero(_gains(run.evaluation, best_of(run.evaluation)) > 0)
    return np.sort(np.random.default_rng(seed).choice(gaining, min(count, len(gaining)), replace=False))


def gain_again(run: Run, rows: np.ndarray, found: Evaluation) -> str:
    """What these samples gain when they are attacked again; the run must not owe its gain to what is not found."""
    best = best_of(run.evaluation)
    said, now = _gains(run.evaluation, best)[rows], _gains(found, best)
    words = f"{len(rows)} samples that gain over member {best} alone gain {100 * now.mean():.1f} points"
    lacking = FOUND * said - now
    gaining = float((_gains(run.evaluation, best) > 0).mean())
    matters = len(rows) >= FEW and (said - now).mean() * gaining > LITTLE
    if matters and lacking.mean() > 0 and p_value(*paired_interval(lacking)) < CLEARLY:
        raise InputError(f"attacked again, {words} where {run.name} says {100 * said.mean():.1f}")
    return f"{words}, in the run {100 * said.mean():.1f}"


def _gains(evaluation: Evaluation, best: int) -> np.ndarray:
    """(N,) how much more the ensemble keeps than a member alone."""
    assert evaluation.alone is not None
    gains: np.ndarray = evaluation.robust_scores - evaluation.alone[best]
    return gains


def _parts(known: Evaluation, rows: np.ndarray, found: Evaluation) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(what, claimed, found now) of the figures beside the robust accuracy that a row is made of, (n,) each."""
    yield "clean", known.clean_scores[rows], found.clean_scores
    yield "under tight", known.robust_scores[rows], found.robust_scores
    for stage, name in (("adaptive_pgd", "under AdaptivePGD"), ("arc", "under ARC")):
        yield name, known.score(known.stages[stage])[rows], found.score(found.stages[stage])
    yield from _alone(known, rows, found)


def _alone(known: Evaluation, rows: np.ndarray, found: Evaluation) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    assert known.alone is not None and found.alone is not None
    for i in np.flatnonzero(known.alpha > 0):
        yield f"member {i} alone", known.alone[i, rows].astype(float), found.alone[i].astype(float)


def drawn_rows(entry: Entry, count: int, seed: int) -> np.ndarray:
    total = len(entry.samples)
    return np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False))


def cross_robustness(entry: Entry, count: int, seed: int) -> list[list[float]]:
    """(M, M) accuracy of member i on PGD's inputs against member j, on the samples that are attacked again."""
    size = len(entry.ensemble)
    samples = entry.samples.batch(drawn_rows(entry, count, seed))
    alike = entry.ensemble.with_alpha([1 / size] * size)
    found = evaluate(alike, RandomAttacker(PGD()), samples, entry.ball, progress=False).cross_robustness
    assert found is not None
    return found.tolist()


def without_folders(command: str | None) -> str | None:
    """A command whose absolute paths are cut to their last part, which means more to others, and quoted for a shell."""
    try:
        words = shlex.split(command or "")
    except ValueError:
        return None
    return shlex.join(re.sub(r"^/.*/(?=[^/])", "", word) for word in words) or None


def training_minutes(made_by: Mapping[str, Any]) -> float | None:
    """What the training took, with that of the first members it started from, as far as the folder says."""
    seconds = [part.get("seconds") for part in (made_by, *made_by.get("start_split", ()))]
    known = [float(each) for each in seconds if isinstance(each, (int, float))]
    return sum(known) / 60 if known else None


def training_command(made_by: Mapping[str, Any]) -> str | None:
    """The command that trains such an ensemble, as its folder tells it; None if the folder does not say."""
    recipe = made_by.get("recipe")
    if made_by.get("command") != "train" or not isinstance(recipe, dict):
        return None
    words = ["recarc", "train", made_by["method"], "--members", made_by["members"], "--data", made_by["data"]]
    words += ["--arch", made_by["arch"]]
    for name, value in dict(made_by.get("arch_options") or {}).items():
        words += ["--arch-option", f"{name}={value}"]
    words += ["--recipe", recipe["name"], "--epochs", f"{recipe['epochs']:g}"]
    if made_by.get("norm"):
        words += ["--norm", made_by["norm"], "--eps", eps_text(made_by["eps"])]
    if recipe.get("diversity", 1.0) != 1.0:
        words += ["--set", f"diversity={recipe['diversity']:g}"]
    if made_by.get("start"):
        words += ["--start", "FIRST_MEMBERS"]
    return shlex.join(map(str, [*words, "--seed", made_by["seed"], "--out", "FOLDER"]))


def flops(rec: RandomizedEnsemble, samples: Samples) -> float | None:
    """Expected floating-point operations of one query."""
    from torch.utils.flop_counter import FlopCounterMode

    x = samples.batch(np.arange(1))[0].to(rec.device_of_members())
    total = 0.0
    with frozen(rec), torch.no_grad():
        for probability, member in zip(rec.alpha.tolist(), rec.members):
            with FlopCounterMode(display=False) as counter:
                member(x)
            total += probability * counter.get_total_flops()
    return total
