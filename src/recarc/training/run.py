"""`train`: from the name of a method to a finished ensemble, through as many stages as the method needs."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc.atomic import sweep_beside
from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.geometry import Norm
from recarc.models.store import save_ensemble
from recarc.provenance import commit
from recarc.runtime import device_named
from recarc.training.batches import split
from recarc.training.checkpoint import CheckpointFolder, TrainingError, disk_message, random_state, set_random_state
from recarc.training.config import TrainingConfig, configure
from recarc.training.distributed import check_batch, training_group
from recarc.training.loop import Loop, total_steps
from recarc.training.method import Method, Stage
from recarc.training.progress import Progress, counted, duration, to_stderr
from recarc.training.speed_options import Execution, SpeedOptions, make_execution
from recarc.training.stage_trainer import StageTrainer, weights_of


def train(
    method: str | Method,
    data: str | Path | ImageSet,
    arch: str | Callable[..., nn.Module] = "resnet20",
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
    speed: SpeedOptions | None = None,
    checkpoint_minutes: float = 5.0,
    confirm: bool = False,
    data_dir: str | Path | None = None,
    tensorboard: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    trust_code: bool = False,
    say: Callable[[str], None] | None = to_stderr,
) -> RandomizedEnsemble:
    """Train an ensemble and, with `out`, save it as an ensemble folder; after a crash, the same call resumes.

    `method` is a name, with `trust_code` also `package.module:Class`, or a `Method` of your own; `arch` is likewise a
    name, `package.module:function`, or a function of (classes, channels, image_size). `changes` replaces fields of
    the recipe (epochs, lr, ...). `start` provides the first members (bat) or the baseline (dverge) as an
    ensemble or its folder. `confirm` accepts an eps of an unlikely scale. `callbacks` are trackers such as
    `recarc.adapters.trackers.MLflow()`, or objects of your own with some of the methods
    training_started(configuration), epoch_done(stage, values, step) and training_ended(alpha, step); `tensorboard` is
    a folder for TensorBoard's. `say=None` is silent. Everything is checked before anything is computed.

    >>> rec = train("bat", "cifar10", norm="linf", eps=8 / 255, out="bat")      # doctest: +SKIP
    """
    where = device_named(device)
    config = configure(
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
        trust_code=trust_code,
    )
    target = None if out is None else Path(out)
    with training_group(where) as group:
        check_batch(config.recipe.batch, group)
        execution = make_execution(config, where, group, speed or SpeedOptions())
        folder = CheckpointFolder(target, config.to_json(), checkpoint_minutes, group)
        progress = Progress(say, sys.stderr, _trackers(callbacks, tensorboard)) if group.first else Progress(None)
        before = random_state()
        try:
            return TrainingRun(config, execution, folder, progress).train()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {folder.status()}") from None
        finally:
            folder.release()
            set_random_state(before)


def _trackers(callbacks: Sequence[Any], tensorboard: str | Path | None) -> list[Any]:
    if tensorboard is None:
        return list(callbacks)
    from recarc.adapters.tensorboard import TensorBoard

    return [*callbacks, TensorBoard(tensorboard)]


class TrainingRun:
    """One training run through its stages."""

    def __init__(
        self, config: TrainingConfig, execution: Execution, folder: CheckpointFolder, progress: Progress
    ) -> None:
        self.config, self.execution, self.folder, self.progress = config, execution, folder, progress
        self.groups = self._plan()
        self.templates = self._templates()
        self.checkpoint = folder.open()
        self.data, self.validation = split(config.data, config.recipe.validation, config.seed, execution.device)
        self.finished: dict[int, dict[str, Tensor]] = {i: weights_of(m) for i, m in enumerate(config.pretrained)}
        self.curve: dict[str, Any] = {}  # by the name of a finished stage
        self.unfinished: dict[str, dict[str, Any]] = {}  # by the name of a stage to resume: its trainer's state
        self.seconds, self.started = 0.0, time.monotonic()

    def _plan(self) -> list[list[Stage]]:
        """Groups of stages that run at the same time, in order."""
        groups = self.config.method.plan(self.config.members, len(self.config.pretrained))
        groups = [group for group in groups if group]
        if not groups and not self.config.method.chooses_alpha:
            raise InputError(f"start provides all {self.config.members} members: there is nothing to train")
        if self.execution.speed.side_by_side:
            return groups
        return [[stage] for group in groups for stage in group]

    def _templates(self) -> dict[int, nn.Module]:
        """The pretrained module of which each member is a copy, for members that start from one directly or not."""
        templates = dict(enumerate(self.config.pretrained))
        for stage in (stage for group in self.groups for stage in group):
            for member, source in zip(stage.members, stage.start or ()):
                if source in templates:
                    templates[member] = templates[source]
        return templates

    def train(self) -> RandomizedEnsemble:
        torch.manual_seed(self.config.seed)
        checkpoint = self.checkpoint
        if checkpoint is not None:
            self.finished, self.curve = checkpoint["finished"], checkpoint["curve"]
            self.seconds, self.unfinished = checkpoint["seconds"], checkpoint["stages"]
        remaining = self._remaining()  # none if `start` provides all members, and only alpha is chosen
        self._announce(remaining)
        self.progress.notify("training_started", self.config.to_json())
        for number, group in enumerate(remaining, 1):
            step = self._first_step(group[0])
            trainers = [self.trainer(stage) for stage in group]
            for trainer in trainers:
                if trainer.stage.name in self.unfinished:
                    trainer.load_state(self.unfinished.pop(trainer.stage.name))
            if checkpoint is not None:
                set_random_state(checkpoint["random"])
            checkpoint = None
            self._loop(trainers, remaining[number:]).run(step)
            self._collect(trainers)
            if number < len(remaining):
                self.folder.save(self._snapshot([], 0), 0)
        return self._finish()

    def _remaining(self) -> list[list[Stage]]:
        """The groups still to train; stages of a group that have reached different steps run one after the other."""
        remaining = []
        for group in self.groups:
            by_step: dict[int, list[Stage]] = {}
            for stage in group:
                if stage.name not in self.curve:
                    by_step.setdefault(self._first_step(stage), []).append(stage)
            remaining += [by_step[step] for step in sorted(by_step, reverse=True)]
        return remaining

    def _first_step(self, stage: Stage) -> int:
        """Where a stage starts or resumes."""
        return int(self.unfinished[stage.name]["step"]) if stage.name in self.unfinished else 0

    def _steps_per_group(self) -> int:
        return total_steps(self.config.recipe.epochs, len(self.data) // self.config.recipe.batch)

    def _announce(self, remaining: list[list[Stage]]) -> None:
        config, stages = self.config, len(self.groups)
        steps = f"{counted(stages * self._steps_per_group(), 'step')} of {config.recipe.batch} images "
        work = steps + f"in {counted(stages, 'stage')}" if stages else "alpha alone"
        ball = f", {config.ball.norm} eps {config.ball.eps:.4g}" if config.ball else ""
        self.progress.say(
            f"{config.method.name}: {config.members} x {config.arch} on {config.data.name}{ball}, recipe "
            f"{config.recipe_name}, seed {config.seed}; {work} on {self.execution.device_name()}; "
            f"speed options: {', '.join(self.execution.speed.active()) or 'none'}"
        )
        self.progress.notes(self.execution.notes)
        if self.folder.note:
            self.progress.say(self.folder.note)
        if self.checkpoint is not None:
            first = remaining[0]
            number = next(i for i, group in enumerate(self.groups, 1) if first[0] in group)
            self.progress.say(f"resuming at stage {number}, step {self._first_step(first[0])}")
        others = {state["device"] for state in self.unfinished.values()} - {self.execution.device.type}
        if others:
            self.progress.say(f"started on {', '.join(others)}: the random numbers differ from here on")

    def trainer(self, stage: Stage) -> StageTrainer:
        starts = stage.start or (None,) * len(stage.members)
        masters = [
            self.config.fresh_member(i) if source is None else self._finished_member(source, i)
            for i, source in zip(stage.members, starts)
        ]
        fixed = [self._finished_member(i, i) for i in stage.fixed]
        return StageTrainer(stage, self.config, masters, fixed, self.data, self.execution)

    def _finished_member(self, index: int, position: int) -> nn.Module:
        """A finished member as a new module at `position`; pretrained ones pass their own architecture on."""
        template = self.templates.get(index)
        module = self.config.fresh_member(position) if template is None else copy.deepcopy(template)
        module.load_state_dict(self.finished[index])
        return module.float().requires_grad_(True)

    def _loop(self, trainers: list[StageTrainer], later: list[list[Stage]]) -> Loop:
        def snapshot(step: int) -> dict[str, Any]:
            return self._snapshot(trainers, step)

        later_steps = len(later) * self._steps_per_group()
        return Loop(trainers, self.validation, self.execution, self.folder, self.progress, snapshot, later_steps)

    def _collect(self, trainers: list[StageTrainer]) -> None:
        for trainer in trainers:
            for index, weights in zip(trainer.stage.members, trainer.result()):
                self.finished[index] = weights
            chosen = {k: trainer.best[k] for k in ("epoch", "score") if k in trainer.best}
            alpha = trainer.context.alpha.tolist()
            self.curve[trainer.stage.name] = {"epochs": trainer.history, "chosen": chosen, "alpha": alpha}

    def _snapshot(self, trainers: list[StageTrainer], step: int) -> dict[str, Any]:
        return {
            "step": step,
            "stages": self.unfinished | {trainer.stage.name: trainer.state(step) for trainer in trainers},
            "finished": self.finished,
            "curve": self.curve,
            "random": random_state(),
            "seconds": self._elapsed(),
        }

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started

    def _finish(self) -> RandomizedEnsemble:
        """Sampling probabilities, provenance, the ensemble folder."""
        members = [self._finished_member(i, i).to(self.execution.device).eval() for i in range(self.config.members)]
        ensemble = RandomizedEnsemble(members)
        ensemble = ensemble.with_alpha(self._alpha(ensemble) if self.config.alpha is None else self.config.alpha)
        ensemble.made_by = self.provenance()
        if self.folder.out is not None and self.execution.group.first:
            self._save(ensemble, self.folder.out)
            self.folder.close()
        self.execution.group.wait()
        self.progress.notify("training_ended", ensemble.alpha.tolist(), len(self.groups) * self._steps_per_group())
        return ensemble

    def _alpha(self, ensemble: RandomizedEnsemble) -> Sequence[float] | Tensor | None:
        method, ball = self.config.method, self.config.ball
        if self.validation is None or ball is None:
            return method.alpha(self.config.members)
        x, y = self.validation.images(torch.arange(min(len(self.validation), 1000), device=self.execution.device))
        chosen = method.choose_alpha(ensemble, x, y, ball)
        return chosen if chosen is not None else method.alpha(self.config.members)

    def _save(self, ensemble: RandomizedEnsemble, out: Path) -> None:
        sweep_beside(out)  # a kill in the middle of the next line leaves a folder there
        try:
            save_ensemble(ensemble, out, made_by=ensemble.made_by)
        except OSError as error:
            raise TrainingError(disk_message(error, out, self.folder.status())) from None
        self.progress.say(f"{out}: {counted(len(ensemble), 'member')} after {duration(self._elapsed())}")

    def provenance(self) -> dict[str, Any]:
        return {
            "command": "train",
            **{k: v for k, v in self.config.to_json().items() if k != "format"},
            "training_images": len(self.data),
            "validation_images": len(self.validation) if self.validation else 0,
            "start_split": list(self.config.start_split),
            "commit": commit(),
            "machine": self.execution.to_json(),
            "notes": self.execution.notes,
            "seconds": round(self._elapsed(), 1),
            "torch": torch.__version__,
            "curve": self.curve,
        }
