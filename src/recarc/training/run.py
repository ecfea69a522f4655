"""`train`: from a method's name to a finished ensemble, through as many stages as the method needs."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.geometry import Norm
from recarc.models.store import save_ensemble
from recarc.provenance import commit
from recarc.runtime import device_named
from recarc.training.batches import Augmentation, split
from recarc.training.checkpoint import RunFolder, lanes_state, load_lane, random_state, set_random_state
from recarc.training.config import Problem, pose
from recarc.training.distributed import check_batch, joined
from recarc.training.faults import TrainingError, disk_message
from recarc.training.loop import Loop, steps_of
from recarc.training.method import Stage
from recarc.training.progress import Board, Progress, duration, to_stderr
from recarc.training.speed_options import Machine, Switches, fit, machine_for
from recarc.training.stage_trainer import Lane


def train(
    method: str,
    data: str | Path | ImageSet,
    arch: str = "resnet20",
    *,
    norm: str | float | Norm | None = None,
    eps: float | None = None,
    out: str | Path | None = None,
    recipe: str = "fast",
    members: int | None = None,
    seed: int = 0,
    start: str | Path | RandomizedEnsemble | Sequence[nn.Module] | None = None,
    alpha: Sequence[float] | None = None,
    changes: Mapping[str, Any] | None = None,
    arch_options: Mapping[str, Any] | None = None,
    device: str | torch.device | None = None,
    switches: Switches | None = None,
    checkpoint_minutes: float = 5.0,
    confirm: bool = False,
    data_dir: str | Path | None = None,
    tensorboard: str | Path | None = None,
    say: Callable[[str], None] | None = to_stderr,
) -> RandomizedEnsemble:
    """Trains an ensemble and, with `out`, leaves it as an ensemble folder; the same call goes on after a crash.

    `changes` replaces fields of the recipe (epochs, lr, ...). `start` gives the first members (bat) or the baseline
    (dverge) as an ensemble or its folder. `say=None` is silent. Everything is checked before anything is computed.

    >>> rec = train("bat", "cifar10", norm="linf", eps=8 / 255, out="bat")      # doctest: +SKIP
    """
    wishes = switches or Switches()
    where = device_named(device)
    problem = pose(
        method,
        data,
        arch,
        norm=norm,
        eps=eps,
        recipe=recipe,
        changes=changes or {},
        members=members,
        seed=seed,
        start=start,
        alpha=alpha,
        arch_options=arch_options or {},
        confirm=confirm,
        saved=out is not None,
        data_dir=data_dir,
    )
    target = None if out is None else Path(out)
    with joined(where) as group:
        check_batch(problem.recipe.batch, group)
        folder = RunFolder(target, problem.config(), checkpoint_minutes, writer=group.main)
        progress = Progress(say if group.main else None, sys.stderr)
        before = random_state()
        try:
            run = Run(problem, machine_for(where, group, wishes), wishes, folder, progress, Board(tensorboard))
            return run.finish(run.train())
        finally:
            folder.release()
            set_random_state(before)


class Run:
    """One training run through its stages."""

    def __init__(
        self,
        problem: Problem,
        machine: Machine,
        wishes: Switches,
        folder: RunFolder,
        progress: Progress,
        board: Board,
    ) -> None:
        self.problem, self.machine, self.wishes = problem, machine, wishes
        self.folder, self.progress, self.board = folder, progress, board
        self.groups = self._groups()
        self.kinds = self._kinds()
        self.kept = folder.open()
        self.data, self.validation = split(problem.data, problem.recipe.validation, problem.seed, machine.device)
        self.done: dict[int, dict[str, Tensor]] = {i: states(m) for i, m in enumerate(problem.given)}
        self.curve: dict[str, Any] = {}  # by the name of a finished stage
        self.begun: dict[str, dict[str, Any]] = {}  # by the name of a stage that is to go on: its lane's state
        self.seconds, self.began = 0.0, time.monotonic()

    def _groups(self) -> list[list[Stage]]:
        """Stages that run at the same time, in order."""
        groups = self.problem.method.plan(self.problem.members, len(self.problem.given))
        groups = [group for group in groups if group]
        if not groups:
            raise InputError(f"all {self.problem.members} members are given by start: there is nothing to train")
        fit(self.machine, self.problem.method, self._template(), self.problem.recipe.attack_mode, self.wishes)
        if self.machine.side_by_side:
            return groups
        return [[stage] for group in groups for stage in group]

    def _kinds(self) -> dict[int, nn.Module]:
        """For each member that is a given one or starts from it (and from one that did): the given one."""
        kinds = dict(enumerate(self.problem.given))
        for stage in (stage for group in self.groups for stage in group):
            for member, source in zip(stage.members, stage.start or ()):
                if source in kinds:
                    kinds[member] = kinds[source]
        return kinds

    def _template(self) -> nn.Module:
        return self.problem.fresh_member(0)

    def _steps(self, group: list[Stage]) -> int:
        recipe = self.problem.recipe
        return steps_of(recipe.epochs, len(self.data) // recipe.batch)

    def train(self) -> list[nn.Module]:
        torch.manual_seed(self.problem.seed)
        if self.kept is not None:
            self.done, self.curve, self.seconds = self.kept["done"], self.kept["curve"], self.kept["seconds"]
            self.begun = self.kept["lanes"]
        left = self._left()
        self._announce(left[0])
        for number, group in enumerate(left, 1):
            step = self._step(group[0])
            lanes = [self.lane(stage) for stage in group]
            for lane in lanes:
                if lane.stage.name in self.begun:
                    load_lane(lane, self.begun.pop(lane.stage.name))
            if self.kept is not None:
                set_random_state(self.kept["random"])
            self.kept = None
            self._loop(lanes, left[number:]).run(step)
            self._collect(lanes)
            if number < len(left):
                self.folder.save(self._snapshot([], 0), 0)
        return [self._finished(i) for i in range(self.problem.members)]

    def _left(self) -> list[list[Stage]]:
        """The groups that are to be trained yet; stages that have come to different steps go one after the other."""
        left = []
        for group in self.groups:
            at: dict[int, list[Stage]] = {}
            for stage in group:
                if stage.name not in self.curve:
                    at.setdefault(self._step(stage), []).append(stage)
            left += [at[step] for step in sorted(at, reverse=True)]
        return left

    def _step(self, stage: Stage) -> int:
        """Where a stage begins or goes on."""
        return int(self.begun[stage.name]["step"]) if stage.name in self.begun else 0

    def _announce(self, first: list[Stage]) -> None:
        problem, total = self.problem, sum(self._steps(group) for group in self.groups)
        ball = f", {problem.ball.norm} eps {problem.ball.eps:.4g}" if problem.ball else ""
        self.progress.say(
            f"{problem.method.name}: {problem.members} x {problem.arch} on {problem.data.name}{ball}, recipe "
            f"{problem.recipe_name}, seed {problem.seed}; {total} steps of {problem.recipe.batch} images in "
            f"{len(self.groups)} stage{'s' * (len(self.groups) > 1)} on {self.machine.state()['device']}; on: "
            f"{', '.join(map(str, self.machine.state()['on'])) or 'nothing special'}"  # type: ignore[call-overload]
        )
        self.progress.notes(self.machine.notes)
        if self.kept is not None:
            number = next(i for i, group in enumerate(self.groups, 1) if first[0] in group)
            self.progress.say(f"going on from stage {number}, step {self._step(first[0])}")
        others = {state["device"] for state in self.begun.values()} - {self.machine.device.type}
        if others:
            self.progress.say(f"begun on {', '.join(others)}: other random numbers from here on than there")

    def _loop(self, lanes: list[Lane], later: list[list[Stage]]) -> Loop:
        ahead = sum(self._steps(group) for group in later)

        def snapshot(step: int) -> dict[str, Any]:
            return self._snapshot(lanes, step)

        return Loop(lanes, self.validation, self.machine, self.folder, self.progress, self.board, snapshot, ahead=ahead)

    def lane(self, stage: Stage) -> Lane:
        problem = self.problem
        method = stage.method or problem.method
        starts = stage.start or (None,) * len(stage.members)
        masters = [
            problem.fresh_member(i) if source is None else self._finished(source, i)
            for i, source in zip(stage.members, starts)
        ]
        return Lane(
            stage,
            method,
            problem.recipe,
            masters,
            [self._finished(i) for i in stage.fixed],
            self.data,
            Augmentation.of(problem.data.name),
            problem.ball,
            seed=problem.seed + stage.members[0] + 7919 * stage.phase,
            machine=self.machine,
        )

    def _finished(self, index: int, seat: int | None = None) -> nn.Module:
        """A finished member as a new module; a given one keeps its own kind and hands it on."""
        if index in self.kinds:
            module = copy.deepcopy(self.kinds[index])
        else:
            module = self.problem.fresh_member(index if seat is None else seat)
        module.load_state_dict(self.done[index])
        return module.float().requires_grad_(True)

    def _collect(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            for index, state in zip(lane.stage.members, lane.result()):
                self.done[index] = state
            chosen = {k: lane.best[k] for k in ("epoch", "score") if k in lane.best}
            self.curve[lane.stage.name] = {"epochs": lane.history, "chosen": chosen, "alpha": lane.team.alpha.tolist()}

    def _snapshot(self, lanes: list[Lane], step: int) -> dict[str, Any]:
        return {
            "step": step,
            "lanes": self.begun | lanes_state(lanes, step),
            "done": self.done,
            "curve": self.curve,
            "random": random_state(),
            "seconds": self._spent(),
        }

    def _spent(self) -> float:
        return self.seconds + time.monotonic() - self.began

    def finish(self, members: list[nn.Module]) -> RandomizedEnsemble:
        """Probabilities, provenance, the folder."""
        problem, group = self.problem, self.machine.group
        ensemble = RandomizedEnsemble([m.to(self.machine.device).eval() for m in members])
        ensemble = ensemble.with_alpha(problem.alpha if problem.alpha is not None else self._alpha(ensemble))
        if self.folder.out is not None and group.main:
            self._save(ensemble, self.folder.out)
            self.folder.close()
        group.wait()
        return ensemble

    def _alpha(self, ensemble: RandomizedEnsemble) -> Sequence[float] | Tensor | None:
        if self.validation is None or self.problem.ball is None:
            return self.problem.method.alpha(self.problem.members)
        x, y = self.validation.images(torch.arange(min(len(self.validation), 1000), device=self.machine.device))
        chosen = self.problem.method.choose_alpha(ensemble, x, y, self.problem.ball)
        return chosen if chosen is not None else self.problem.method.alpha(self.problem.members)

    def _save(self, ensemble: RandomizedEnsemble, out: Path) -> None:
        try:
            save_ensemble(ensemble, out, made_by=self.provenance())
        except OSError as error:
            raise TrainingError(disk_message(error, out, self.folder.kept())) from None
        self.progress.say(f"{out}: {len(ensemble)} members after {duration(self._spent())}")

    def provenance(self) -> dict[str, Any]:
        config = self.problem.config()
        return {
            "command": "train",
            **{k: v for k, v in config.items() if k != "format"},
            "training_images": len(self.data),
            "validation_images": len(self.validation) if self.validation else 0,
            "commit": commit(),
            "machine": self.machine.state(),
            "notes": self.machine.notes,
            "seconds": round(self._spent(), 1),
            "torch": torch.__version__,
            "curve": self.curve,
        }


def states(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
