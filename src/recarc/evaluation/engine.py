"""`evaluate`: prepare, attack, judge, record; shard by shard, resumable, in one process or many."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.attacks.unmasking import Masked
from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble, frozen
from recarc.errors import InputError, RunError
from recarc.evaluation import checks
from recarc.evaluation.attack import run_attack
from recarc.evaluation.judge import judge
from recarc.evaluation.masking import Signal, probe_rows
from recarc.evaluation.prepare import Prepared, Settings, prepare
from recarc.evaluation.progress import Progress, Shard, notify, progress_bar
from recarc.evaluation.records import Records, joined
from recarc.evaluation.result import Evaluation
from recarc.evaluation.resume import check_rank, create_or_resume, masked_in, saved_configuration, shards_to_do
from recarc.evaluation.run_folder import RunFolder, interruptible, locked
from recarc.evaluation.samples import as_samples
from recarc.evaluation.tiling import Passes, reproducible, retiled
from recarc.geometry import Ball
from recarc.provenance import environment
from recarc.runtime import COARSE, Ranks, device_named, joined_ranks

VISIBLE_AFTER = 60  # seconds that a network file system may take to show another node's shard


def evaluate(
    ensemble: RandomizedEnsemble | Member,
    attack: Any,
    data: Any,
    ball: Ball,
    *,
    batch_size: int | str = "auto",
    out: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    save_inputs: bool = False,
    precision: str | None = "auto",
    device: str | torch.device | None = None,
    shard_size: int | str = "auto",
    tile: int | str = "auto",
    callbacks: Sequence[Any] = (),
) -> Evaluation:
    """Attack every sample of `data` and report the accuracy that remains.

    `data`: an image set, a pair (x, y) of tensors or arrays, a torch Dataset, or a DataLoader that does not shuffle.

    Every adversarial input is checked again (norm, box, prediction in float32); an attack that cheats raises
    `AttackViolation`. With `out`, records go to that folder shard by shard, and the same call resumes where it stopped;
    without, they exist only in the result. Under `torchrun` the shards are shared out among the ranks. `precision` is
    that of the attack's own computations: "auto" is float16 on a GPU and float32 elsewhere, None is each member's own.
    `device` ("cuda", "auto", ...) is where the members are moved to; without it
    they stay where they are. `callbacks` (see `recarc.evaluation.Callback`) are notified when the run
    starts, when a shard is done and when it ends.
    """
    ensemble, samples = as_ensemble(ensemble), as_samples(data)
    place = None if device is None else device_named(device)
    if place is not None:
        ensemble.to(place)
    settings = Settings(precision, batch_size, shard_size, tile, save_inputs, place)
    with interruptible(out), checks.collect_warnings() as warned, ExitStack() as stack:
        checks.check_modes(ensemble)
        ranks = stack.enter_context(joined_ranks())
        if out is None and ranks.world > 1:
            raise InputError("several processes need a common run folder: pass out=...")
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out)
        stack.enter_context(frozen(ensemble))
        prepared = ranks.together(lambda: prepare(ensemble, attack, samples, ball, settings, saved_configuration(path)))
        stack.enter_context(reproducible(prepared.device))
        run = _Process(prepared, ranks, progress, callbacks)
        folder = ranks.agree(lambda: run.open(path, resume, stack))
        folder.temporary = out is None
        run.adapt(masked_in(folder.configuration))
        ranks.together(lambda: check_rank(folder, ranks.rank, run.prepared.config, prepared.first_logits))
        todo = ranks.agree(lambda: shards_to_do(folder, run.environment))
        run.announce(folder, todo, warned)
        run.attack_and_judge(folder, todo[ranks.rank :: ranks.world])
        ranks.wait()
        result = run.summarise(folder, warned)
    if out is None:
        result.path = None
    if ranks.first:
        notify(callbacks, "run_ended", result)
    return result


class _Process:
    """One process's share of an evaluation that was prepared."""

    def __init__(self, prepared: Prepared, ranks: Ranks, progress: bool, callbacks: Sequence[Any]) -> None:
        self.prepared = prepared
        self.ranks = ranks
        self.progress = progress and ranks.first
        self.callbacks = callbacks
        self.environment = environment(prepared.device)
        self.batch_size = prepared.batch_size
        self.signals: list[Signal] | None = None  # those of the first rank, once measured

    def open(self, path: Path, resume: bool, stack: ExitStack) -> RunFolder:
        """The run folder, new or resumed, locked until the stack unwinds.

        A new run measures the members first: how the attack reacts to the signals is part of the configuration, so that
        every rank, and whoever resumes, reacts alike.
        """
        lock = stack.enter_context(locked(path))
        saved = saved_configuration(path)
        self.adapt(masked_in(saved) if saved else [(signal.member, signal.name) for signal in self.measure()])
        folder = create_or_resume(path, self.prepared.config, self.prepared.first_logits, self.environment, resume)
        folder.lock = lock
        return folder

    def measure(self) -> list[Signal]:
        """The signals of the members on a random few of the samples; warns of each."""
        if self.signals is None:
            probe = self.prepared.problem(probe_rows(len(self.prepared.samples)))
            members = retiled(probe.ensemble, len(probe))
            self.signals = checks.check_members(members, probe.x, probe.y, probe.ball)
        return self.signals

    def adapt(self, masked: Masked) -> None:
        self.prepared = self.prepared.adapted(masked)

    def announce(self, folder: RunFolder, todo: list[int], warned: Sequence[str]) -> None:
        """On the first rank: check the members, record the warnings so far, notify the callbacks."""
        if not self.ranks.first:
            return
        folder.record_warnings(warned, self.measure() if todo else [])
        notify(self.callbacks, "run_started", self.prepared.config, folder.samples, len(todo))

    def attack_and_judge(self, folder: RunFolder, shards: list[int]) -> None:
        """Each of these shards: attack and judge its samples, then commit the records."""
        passes = self.prepared.passes
        version = {key: self.environment[key] for key in ("recarc", "commit")}
        total = sum(len(folder.rows_of(k)) for k in shards)
        with progress_bar(total, self.progress, passes) as progress:
            for k in shards:
                start = time.perf_counter()
                passes.forward = passes.backward = 0
                records, inputs = self._shard(np.array(folder.rows_of(k)), progress)
                seconds = time.perf_counter() - start
                cost = {"seconds": seconds, "forward": passes.forward, "backward": passes.backward, **version}
                folder.commit(k, records, cost, inputs)
                if self.callbacks:
                    part = Evaluation(records, self.prepared.members.alpha.numpy())
                    shard = Shard(k, len(records), part.clean_accuracy, part.robust_accuracy, seconds)
                    notify(self.callbacks, "shard_done", shard)

    def _shard(self, index: np.ndarray, progress: Progress) -> tuple[Records, bytes | None]:
        """The records of a shard, batch by batch; a batch that does not fit into memory is halved."""
        passes, save_inputs = self.prepared.passes, self.prepared.config["save_inputs"]
        parts: list[Records] = []
        saved: list[Tensor] = []
        start = 0
        while start < len(index):
            rows = index[start : start + self.batch_size]
            before = Passes(passes.forward, passes.backward)
            try:
                problem = self.prepared.problem(rows)
                attacked = run_attack(self.prepared.attacker, problem)
                records, inputs = judge(problem, attacked, rows)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                passes.forward, passes.backward = before.forward, before.backward
                self._halve_batch(len(rows))
                continue
            parts.append(records)
            if save_inputs:
                saved.append(torch.stack(inputs, dim=1).cpu())
            progress.advance(len(rows), self._score(records))
            start += len(rows)
        return joined(parts), _safetensors(torch.cat(saved)) if save_inputs else None

    def _halve_batch(self, failed: int) -> None:
        smallest = self.prepared.smallest_batch
        if failed <= smallest:
            advice = "use a device with more memory, or from Python a smaller tile=... and another run folder"
            if self.prepared.config["precision"] in COARSE and smallest > self.prepared.config["tile"]:
                advice = "--precision float32 takes fewer at a time (use another run folder)"
            raise RunError(
                f"out of memory with {failed} samples at a time, the fewest that this run can take; free the memory "
                f"that other processes hold, or {advice}"
            ) from None
        self.batch_size = max(smallest, failed // 2)
        if self.prepared.device.type == "cuda":
            torch.cuda.empty_cache()

    def _score(self, records: Records) -> float:
        """Sum of the expected accuracies of a batch, for the progress bar."""
        right = (records.adversarial == records.labels).sum(2)  # (J, M)
        return float(records.weights @ right @ self.prepared.members.alpha.numpy())

    def summarise(self, folder: RunFolder, warned: Sequence[str]) -> Evaluation:
        """The result from the records of all ranks; the first rank checks it and writes the summary."""
        result = self._load(folder)
        if self.ranks.first:
            result.signals = list(dict.fromkeys([*result.signals, *checks.check_result(result, self.prepared.classes)]))
            result.warnings = list(dict.fromkeys([*result.warnings, *warned]))
            folder.write_summary(result.to_json())
        return result

    def _load(self, folder: RunFolder) -> Evaluation:
        deadline = time.monotonic() + VISIBLE_AFTER
        while True:
            try:
                return Evaluation.load(folder.path)
            except InputError:
                if self.ranks.world == 1 or time.monotonic() > deadline:
                    raise
                time.sleep(1)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _safetensors(x_adv: Tensor) -> bytes:
    from safetensors.torch import save

    return save({"x_adv": x_adv.contiguous()})
