"""The only training loop. Methods plug into it through `Method`; lanes hold the state, the loop holds the clock."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from recarc.runtime import kernel_settings
from recarc.training.batches import Pixels
from recarc.training.checkpoint import RunFolder
from recarc.training.cuda_graph import stepper
from recarc.training.faults import Interrupted, TrainingError, memory_advice
from recarc.training.progress import Board, Progress
from recarc.training.speed_options import Machine
from recarc.training.stage_trainer import Lane

CHECK_EVERY = 50  # steps between looks at the device: is the loss finite, how fast are we
VALIDATION_BATCH = 1000


class Loop:
    """Trains lanes with equal schedules at the same time, one step of each in turn (or side by side on a GPU)."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        validation: Pixels | None,
        machine: Machine,
        folder: RunFolder,
        progress: Progress,
        board: Board,
        snapshot: Callable[[int], dict[str, Any]],
        ahead: int = 0,
    ) -> None:
        self.lanes, self.validation, self.machine = list(lanes), validation, machine
        self.folder, self.progress, self.board, self.snapshot, self.ahead = folder, progress, board, snapshot, ahead
        recipe = self.lanes[0].recipe
        self.recipe = recipe
        self.steps_an_epoch = len(self.lanes[0].data) // recipe.batch
        self.steps = steps_of(recipe.epochs, self.steps_an_epoch)

    @property
    def label(self) -> str:
        return " | ".join(lane.stage.label for lane in self.lanes)

    def run(self, step: int = 0) -> None:
        """From step `step` (its state is in the lanes) to the end."""
        self.progress.stage(self.label, self.steps, self.recipe.epochs, self.ahead)
        with (
            memory_advice(self.recipe.batch),
            kernel_settings(self.machine.device, benchmark=True),
            stop_signals() as stopped,
        ):
            self._load(step)
            advance, done = None, self._patience_over(step)  # a checkpoint may be of the last step
            while step < self.steps and not done:
                if advance is None:
                    advance = stepper(self.lanes, self.machine)
                    self.progress.notes(self.machine.notes)
                    self.progress.go()
                advance()
                step += 1
                self.progress.tick(step, self.steps, self._settle)
                done = self._between(step, bool(stopped))
                if step < self.steps and not done:
                    self._load(step)

    def _load(self, step: int) -> None:
        for lane in self.lanes:
            lane.load(min(step, self.steps - 1), self.steps, self.steps_an_epoch)

    def _between(self, step: int, stopped: bool) -> bool:
        """Everything that is not training: looks, validation, checkpoints. True: stop early."""
        epoch_done = step % self.steps_an_epoch == 0 or step == self.steps
        if step % CHECK_EVERY == 0 or epoch_done:
            self.check_finite(step)
            left = self.progress.left(step, self.steps)
            self.progress.live(f"{self.label}: step {step}/{self.steps}, {left:.0f} s left")
        if epoch_done:
            self._epoch_end(step)
        due, stopped = self.machine.group.any(self.folder.due(), stopped)  # a snapshot needs all processes
        if due or stopped:
            self.check_finite(step)
            self.folder.save(self.snapshot(step), step)
        if stopped:
            raise Interrupted(f"interrupted at step {step} of {self.label}; {self.folder.kept()}")
        return self._patience_over(step)

    def _patience_over(self, step: int) -> bool:
        """Whether every lane waited for so many epochs in vain."""
        epoch = step // self.steps_an_epoch
        waited = [epoch - lane.best.get("since", epoch) for lane in self.lanes]
        return step % self.steps_an_epoch == 0 and 0 < self.recipe.patience <= min(waited)

    def check_finite(self, step: int) -> None:
        bad = [(lane.bad_step(), lane) for lane in self.lanes]
        for first, lane in bad:
            if first is not None:
                raise TrainingError(
                    f"the loss of {lane.stage.label} is not finite at step {first} (seen at step {step}); lower the "
                    f"learning rate (now at most {self.recipe.lr:g}) or switch bf16 off; {self.folder.kept()}"
                )

    def _epoch_end(self, step: int) -> None:
        epoch = math.ceil(step / self.steps_an_epoch)
        last = step == self.steps
        look = self.validation is not None and (last or epoch % self.recipe.validate_every == 0)
        for lane in self.lanes:
            entry: dict[str, Any] = {"epoch": epoch, "loss": lane.read_losses()}
            if look and self.validation is not None:
                entry |= self._validate(lane, self.validation, epoch)
            lane.history.append(entry)
            self.progress.epoch(lane.stage.label, entry, self.recipe.epochs, step, self.steps)
            if self.machine.group.main:
                self.board.epoch(lane.stage.label, entry, step)

    def _validate(self, lane: Lane, validation: Pixels, epoch: int) -> dict[str, float]:
        lane.seat_judges()
        found = validate(lane, validation)
        score, best = [found.get("attacked", found["clean"]), found["clean"]], lane.best.get("score", [-1.0, -1.0])
        if score >= best:  # of equals the one trained longer
            since = epoch if score > best else lane.best["since"]
            lane.best = {"score": score, "epoch": epoch, "since": since, "states": lane.judged_states()}

        def errors() -> Tensor:
            return member_errors(lane, validation)

        lane.method.epoch_end(lane.team, epoch, math.ceil(self.recipe.epochs), errors)
        return found

    def _settle(self) -> None:
        if self.machine.device.type == "cuda":
            torch.cuda.synchronize(self.machine.device)


def steps_of(epochs: float, steps_an_epoch: int) -> int:
    return max(1, round(epochs * steps_an_epoch))


def validate(lane: Lane, data: Pixels) -> dict[str, float]:
    """Accuracy of the judged members: clean, and under the method's own attack if it has one; the images shared by all
    processes."""
    team, group = lane.judged_team(), lane.machine.group
    sums = torch.zeros(3, dtype=torch.float64)  # the third counts images that were attacked, on all processes
    for x, y in shared_batches(lane, data):
        with lane.machine.autocast(), torch.no_grad():
            clean = attacked = lane.method.score(team, x, y)
            probed = lane.method.probe(team, x, y)
            if probed is not x:
                attacked = lane.method.score(team, probed, y)
        sums += torch.tensor([float(clean.sum()), float(attacked.sum()), len(x) * (probed is not x)])
    right, standing, probes = group.total(sums.to(lane.machine.device, torch.float32)).tolist()
    found = {"clean": right / len(data)}
    return {**found, "attacked": standing / len(data)} if probes else found


def member_errors(lane: Lane, data: Pixels) -> Tensor:
    """(M,) error rates of every member of the mixture on the method's attack: OSP's sub-gradient."""
    team, group = lane.judged_team(), lane.machine.group
    wrong = torch.zeros(len(team.mixture), device=lane.machine.device)
    for x, y in shared_batches(lane, data):
        with lane.machine.autocast(), torch.no_grad():
            attacked = lane.method.probe(team, x, y)
            wrong += torch.stack([(member(attacked).argmax(1) != y).float().sum() for member in team.mixture])
    return group.total(wrong) / len(data)


def shared_batches(lane: Lane, data: Pixels) -> Iterator[tuple[Tensor, Tensor]]:
    group = lane.machine.group
    rows = torch.arange(len(data), device=lane.machine.device)[group.rank :: group.world]
    for part in rows.split(VALIDATION_BATCH):
        x, y = data.images(part)
        yield lane.machine.layout(x), y


@contextmanager
def stop_signals() -> Iterator[list[float]]:
    """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; a second one at once."""
    stopped: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def note(number: int, frame: object) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(time.monotonic())

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
