"""The only training loop. Methods plug into it through `Method`; each `StageTrainer` holds the state of a stage."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from recarc.errors import Interrupted, first_line
from recarc.runtime import kernel_settings
from recarc.training.batches import Pixels
from recarc.training.checkpoint import CheckpointFolder, TrainingError
from recarc.training.cuda_graph import step_function
from recarc.training.progress import Progress
from recarc.training.speed_options import Execution
from recarc.training.stage_trainer import StageTrainer

CHECK_EVERY = 50  # steps between checks that the loss is finite
VALIDATION_BATCH = 1000


class Loop:
    """Trains stages with equal schedules at the same time, one step of each in turn (or side by side on a GPU).

    `snapshot` returns the state to save in a checkpoint; `later_steps` are those of later stages.
    """

    def __init__(
        self,
        trainers: Sequence[StageTrainer],
        validation: Pixels | None,
        execution: Execution,
        folder: CheckpointFolder,
        progress: Progress,
        snapshot: Callable[[int], dict[str, Any]],
        later_steps: int = 0,
    ) -> None:
        self.trainers, self.validation, self.execution = list(trainers), validation, execution
        self.folder, self.progress, self.snapshot, self.later_steps = folder, progress, snapshot, later_steps
        self.recipe = self.trainers[0].recipe
        self.steps_per_epoch = len(self.trainers[0].data) // self.recipe.batch
        self.steps = total_steps(self.recipe.epochs, self.steps_per_epoch)

    @property
    def label(self) -> str:
        return " | ".join(trainer.stage.label for trainer in self.trainers)

    def run(self, step: int = 0) -> None:
        """Train from step `step`, whose state is in the trainers, to the end."""
        self.progress.start_stage(self.label, self.steps, self.recipe.epochs, self.later_steps)
        with (
            memory_advice(self.recipe.batch),
            kernel_settings(self.execution.device, benchmark=True),
            stop_signals() as stopped,
        ):
            self._load(step)
            advance, done = None, self._out_of_patience(step)  # a checkpoint may be of the last step
            while step < self.steps and not done:
                if advance is None:
                    advance = step_function(self.trainers, self.execution)
                    self.progress.notes(self.execution.notes)
                    self.progress.start_clock()
                advance()
                step += 1
                self.progress.step_done(step, self.steps, self._synchronize)
                done = self._between_steps(step, stopped)
                if step < self.steps and not done:
                    self._load(step)

    def _load(self, step: int) -> None:
        for trainer in self.trainers:
            trainer.load(min(step, self.steps - 1), self.steps, self.steps_per_epoch)

    def _between_steps(self, step: int, stop: threading.Event) -> bool:
        """Everything but training: checks, validation, checkpoints. True: stop early."""
        epoch_done = step % self.steps_per_epoch == 0 or step == self.steps
        if step % CHECK_EVERY == 0 or epoch_done:
            self.check_finite(step)
            left = self.progress.seconds_left(step, self.steps)
            self.progress.live(f"{self.label}: step {step}/{self.steps}, {left:.0f} s left")
        if epoch_done:
            self._end_epoch(step)
        # All processes take part in a snapshot. Signals may have come while an epoch was validated.
        due, stopped = self.execution.group.any(self.folder.due(), stop.is_set())
        if due or stopped:
            self.check_finite(step)
            self.folder.save(self.snapshot(step), step)
        if stopped:
            raise Interrupted(f"interrupted at step {step} of {self.label}; {self.folder.status()}")
        return self._out_of_patience(step)

    def _out_of_patience(self, step: int) -> bool:
        """Whether no trainer has improved for `patience` epochs."""
        epoch = step // self.steps_per_epoch
        waited = [epoch - trainer.best.get("since", epoch) for trainer in self.trainers]
        return step % self.steps_per_epoch == 0 and 0 < self.recipe.patience <= min(waited)

    def check_finite(self, step: int) -> None:
        for trainer in self.trainers:
            first = trainer.bad_step()
            if first is not None:
                raise TrainingError(
                    f"the loss of {trainer.stage.label} is not finite at step {first} (noticed at step {step}); lower "
                    f"the learning rate (now at most {self.recipe.lr:g}) or switch bf16 off; {self.folder.status()}"
                )

    def _end_epoch(self, step: int) -> None:
        epoch = math.ceil(step / self.steps_per_epoch)
        due = step == self.steps or epoch % self.recipe.validate_every == 0
        for trainer in self.trainers:
            entry: dict[str, Any] = {"epoch": epoch, "loss": trainer.read_losses()}
            if due and self.validation is not None:
                entry |= self._validate(trainer, self.validation, epoch)
            trainer.history.append(entry)
            self.progress.epoch_done(trainer.stage.label, entry, self.recipe.epochs, step, self.steps)

    def _validate(self, trainer: StageTrainer, validation: Pixels, epoch: int) -> dict[str, float]:
        trainer.update_eval_models()
        result = validate(trainer, validation)
        score = [result.get("attacked", result["clean"]), result["clean"]]
        best = trainer.best.get("score", [-1.0, -1.0])
        if score >= best:  # of equals, the one trained longer
            since = epoch if score > best else trainer.best["since"]
            trainer.best = {"score": score, "epoch": epoch, "since": since, "states": trainer.eval_states()}

        def errors() -> Tensor:
            return member_errors(trainer, validation)

        alpha = trainer.context.alpha.clone()
        trainer.method.epoch_end(trainer.context, epoch, math.ceil(self.recipe.epochs), errors)
        if not torch.equal(alpha, trainer.context.alpha):
            trainer.best = {}  # scores so far are of another mixture, and so are the weights
        return result

    def _synchronize(self) -> None:
        if self.execution.device.type == "cuda":
            torch.cuda.synchronize(self.execution.device)


def total_steps(epochs: float, steps_per_epoch: int) -> int:
    return max(1, round(epochs * steps_per_epoch))


def validate(trainer: StageTrainer, data: Pixels) -> dict[str, float]:
    """Accuracy of the evaluation models: clean, and under the method's own attack if it has one.

    The processes share the images.
    """
    context, execution = trainer.eval_context(), trainer.execution
    sums = torch.zeros(3, dtype=torch.float64)  # correct, correct under attack, attacked images
    for x, y in _shared_batches(trainer, data):
        with execution.autocast(), torch.no_grad():
            clean = attacked = trainer.method.score(context, x, y)
            x_adv = trainer.method.validation_batch(context, x, y)
            if x_adv is not x:
                attacked = trainer.method.score(context, x_adv, y)
        sums += torch.tensor([float(clean.sum()), float(attacked.sum()), len(x) * (x_adv is not x)])
    clean_sum, attacked_sum, images = execution.group.total(sums.to(execution.device, torch.float32)).tolist()
    result = {"clean": clean_sum / len(data)}
    return {**result, "attacked": attacked_sum / len(data)} if images else result


def member_errors(trainer: StageTrainer, data: Pixels) -> Tensor:
    """(M,) error rate of every member of the mixture under the method's attack: OSP's sub-gradient."""
    context, execution = trainer.eval_context(), trainer.execution
    wrong = torch.zeros(len(context.mixture), device=execution.device)
    for x, y in _shared_batches(trainer, data):
        with execution.autocast(), torch.no_grad():
            x_adv = trainer.method.validation_batch(context, x, y)
            wrong += torch.stack([(member(x_adv).argmax(1) != y).float().sum() for member in context.mixture])
    return execution.group.total(wrong) / len(data)


def _shared_batches(trainer: StageTrainer, data: Pixels) -> Iterator[tuple[Tensor, Tensor]]:
    group = trainer.execution.group
    rows = torch.arange(len(data), device=trainer.execution.device)[group.rank :: group.world]
    for part in rows.split(VALIDATION_BATCH):
        x, y = data.images(part)
        yield trainer.execution.layout(x), y


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; a second one ends it at once.

    One that nobody noticed within the block ends the run after it.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped.is_set():
        raise KeyboardInterrupt


@contextmanager
def memory_advice(batch: int) -> Iterator[None]:
    """Report running out of memory in one line that says what to lower."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise TrainingError(
            f"out of device memory at batch {batch}: {first_line(error)}; lower the batch size, "
            "train members one by one (--one-by-one), or use a larger device"
        ) from None
    except MemoryError:
        raise TrainingError(f"out of memory at batch {batch}: lower the batch size") from None
