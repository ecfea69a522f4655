"""`evaluate`: prepare, attack, judge, record; shard by shard, resumable, in one process or many."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from recarc.attacks.unmasking import Masked
from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble, frozen
from recarc.errors import AttackViolation, InputError, RunError
from recarc.evaluation import checks
from recarc.evaluation.attack import run_attack
from recarc.evaluation.judge import judge
from recarc.evaluation.masking import Signal, left_rows, probe_rows
from recarc.evaluation.prepare import Prepared, Settings, prepare
from recarc.evaluation.progress import Progress, Shard, notify, progress_bar
from recarc.evaluation.records import Records, joined, taken
from recarc.evaluation.result import Evaluation
from recarc.evaluation.resume import check_rank, create_or_resume, masked_in, saved_configuration, shards_to_do
from recarc.evaluation.run_folder import RunFolder, interruptible, locked
from recarc.evaluation.samples import as_samples
from recarc.evaluation.tiling import Passes, accelerated, reproducible, retiled
from recarc.geometry import Ball
from recarc.provenance import environment
from recarc.runtime import COARSE, Ranks, device_named, joined_ranks, out_of_memory

KEEP_AFTER = 20.0  # seconds of work after which the samples of an unfinished shard are written
LONG = 20.0  # seconds that a batch may take on a CPU before it is made smaller
PATIENCE = 60.0  # seconds that other processes are given to free memory
WAITS = 2  # for that, before CUDA graphs are given up
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
    `device` ("cuda", "auto", ...) is where the members are moved to; without it they stay where they are. `callbacks`
    (see `recarc.evaluation.Callback`) are notified when the run starts, when a shard is done and when it ends.
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
        self.largest_batch = prepared.batch_size
        # On a CPU batches grow as long as they are quick, so that a slow ensemble has something to keep every minute.
        on_cpu = prepared.device.type == "cpu"
        self.batch_size = min(prepared.batch_size, prepared.smallest_batch) if on_cpu else prepared.batch_size
        self.freed = self.waited = False  # to make room, since the last batch that fitted
        self.waits = 0  # in this run
        self.signals: list[Signal] | None = None  # those of the first rank, once measured

    @property
    def certifies(self) -> bool:
        return bool(getattr(self.prepared.attacker.attack, "proves", False))

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
        """The signals of the members on a random few of the samples; warns of each, and of an odd ball."""
        if self.signals is None:
            probe = self.prepared.problem(probe_rows(len(self.prepared.samples)))
            checks.check_ball(self.prepared.ball, probe.x, probe.ensemble.made_by)
            members = retiled(probe.ensemble, len(probe))
            # A certificate needs no gradients.
            self.signals = [] if self.certifies else checks.check_members(members, probe.x, probe.y, probe.ball)
        return self.signals

    def adapt(self, masked: Masked) -> None:
        self.prepared = self.prepared.adapted(masked)

    def announce(self, folder: RunFolder, todo: list[int], warned: Sequence[str]) -> None:
        """On the first rank: check the members, unless an earlier process did; record warnings, notify callbacks."""
        if not self.ranks.first:
            return
        summary, signals = folder.summary(), []
        if todo and "signals" in summary:
            checks.warn_again(summary)
        elif todo:
            signals = self.measure()
        folder.record_warnings(warned, signals)
        if self.progress and 0 < len(todo) < folder.shards:
            print(f"resuming {len(todo)} of {folder.shards} shards; records in {folder.path}", file=sys.stderr)
        notify(self.callbacks, "run_started", self.prepared.config, folder.samples, len(todo))

    def attack_and_judge(self, folder: RunFolder, shards: list[int]) -> None:
        """Attack and judge the samples of these shards, batch by batch; a shard is committed once it is whole.

        A batch may span shards: the fewer batches, the fewer times a device waits for the last samples of one.
        """
        passes, waiting = self.prepared.passes, list(shards)
        version = {key: self.environment[key] for key in ("recarc", "commit")}
        total = sum(len(folder.rows_of(k)) for k in shards)
        with progress_bar(total, self.progress, passes, self.ranks) as progress:
            begun: list[_Shard] = []
            while waiting or begun:
                while waiting and sum(len(shard.missing) for shard in begun) < self.batch_size:
                    begun.append(_Shard(folder, waiting.pop(0), version))
                    for records in begun[-1].parts:
                        progress.advance(len(records), self._score(records))
                self._attack_batch(begun, progress)
                for shard in begun:
                    if not len(shard.missing):
                        self._report(shard)
                begun = [shard for shard in begun if len(shard.missing)]

    def _report(self, shard: _Shard) -> None:
        if self.callbacks:
            part = Evaluation(joined(shard.parts), self.prepared.members.alpha.numpy())
            done = Shard(shard.k, len(part), part.clean_accuracy, part.robust_accuracy, shard.cost.seconds)
            notify(self.callbacks, "shard_done", done)

    def _attack_batch(self, shards: list[_Shard], progress: Progress) -> None:
        """Attack the next samples of these shards; if they do not fit into memory, only make room for another try."""
        passes, start = self.prepared.passes, time.perf_counter()
        before = Passes(passes.forward, passes.backward)
        rows = np.concatenate([shard.missing for shard in shards])[: self.batch_size]
        if not len(rows):
            return
        judged = self._judged_in_memory(rows)
        if judged is None:
            passes.forward, passes.backward = before.forward, before.backward
            self._make_room(len(rows))
            return
        records, inputs = judged
        self.freed = self.waited = False
        seconds = time.perf_counter() - start
        cost = _Cost(seconds, passes.forward - before.forward, passes.backward - before.backward)
        first = 0
        for shard in shards:
            own = range(first, min(first + len(shard.missing), len(rows)))
            if own:
                shard.add(taken(records, own), [x[own.start : own.stop] for x in inputs], cost.share(own, len(rows)))
            first = own.stop
        progress.advance(len(rows), self._score(records))
        self._fit_batch(len(rows), seconds)

    def _fit_batch(self, count: int, seconds: float) -> None:
        """On a CPU, as many samples at a time as take no longer than LONG."""
        if self.prepared.device.type != "cpu":
            return
        if 2 * seconds < LONG and count == self.batch_size:
            self.batch_size = min(2 * self.batch_size, self.largest_batch)
        elif seconds > 2 * LONG:
            self.batch_size = max(min(self.prepared.smallest_batch, self.largest_batch), self.batch_size // 2)

    def _judged_in_memory(self, rows: np.ndarray) -> tuple[Records, list[Tensor]] | None:
        """None if memory ran out; by then nothing of the batch is kept alive by the error."""
        try:
            return self._judged(rows)
        except RuntimeError as error:
            if isinstance(error, RunError | AttackViolation) or not out_of_memory(error):
                raise
        return None

    def _judged(self, rows: np.ndarray) -> tuple[Records, list[Tensor]]:
        """The records of a batch and its adversarial inputs; of a certificate, what it proves."""
        problem, attack = self.prepared.problem(rows), self.prepared.attacker.attack
        if self.certifies:
            from recarc.evaluation.certification import certified_records

            return certified_records(attack, problem, rows), []
        return judge(problem, run_attack(self.prepared.attacker, problem), rows)

    def _make_room(self, failed: int) -> None:
        """After so many samples did not fit into memory: free what members hold, and halve the batch.

        The smallest batch is tried again as it is; then after a minute in which other processes may free memory, twice
        in a run with CUDA graphs; then without them; then the run ends.
        """
        smallest = self.prepared.smallest_batch
        captured = [m for m in accelerated(self.prepared.attacker.ensemble) if m.capturing]
        freed = [member.free_captured() for member in captured]
        gc.collect()
        if self.prepared.device.type == "cuda":
            torch.cuda.empty_cache()
        if failed > smallest:
            self.batch_size = self.largest_batch = max(smallest, failed // 2)
        elif any(freed) and not self.freed:
            self.freed = True
        elif not self.waited and not (captured and self.waits >= WAITS):
            if self.progress:
                print(f"out of memory with {failed} samples at a time; trying again in a minute", file=sys.stderr)
            self.waited, self.waits = True, self.waits + 1
            time.sleep(PATIENCE)
        elif captured:
            for member in captured:
                member.stop_capturing(f"out of memory with {failed} samples at a time")
        else:
            advice = "use a device with more memory, or from Python a smaller tile=... and another run folder"
            if self.prepared.config["precision"] in COARSE and smallest > self.prepared.config["tile"]:
                advice = "--precision float32 takes fewer at a time (use another run folder)"
            raise RunError(
                f"out of memory with {failed} samples at a time, the fewest that this run can take; free the memory "
                f"that other processes hold, or {advice}"
            )

    def _score(self, records: Records) -> float:
        """Sum of the expected accuracies of a batch, for the progress bar."""
        right = (records.adversarial == records.labels).sum(2)  # (J, M)
        return float(records.weights @ right @ self.prepared.members.alpha.numpy())

    def summarise(self, folder: RunFolder, warned: Sequence[str]) -> Evaluation:
        """The result from the records of all ranks; the first rank checks it and writes the summary."""
        result = self._load(folder)
        if self.ranks.first:
            new = checks.check_result(result, self.prepared.classes)
            if not folder.summary().get("complete"):
                new += self.measure_survivors(result)
            result.signals = list(dict.fromkeys([*result.signals, *new]))
            result.warnings = list(dict.fromkeys([*result.warnings, *warned]))
            folder.write_summary(result.to_json())
        return result

    def measure_survivors(self, result: Evaluation) -> list[Signal]:
        """The signals of the members on a random few of the samples that each of them withstood; warns of each."""
        alone, known = result.alone, {signal.member for signal in result.signals}
        if alone is None or not result.complete:
            return []
        signals = []
        for i in sorted(set(self.prepared.members.order) - known):
            rows = left_rows(alone[i])
            if len(rows):
                left = self.prepared.problem(rows)
                signals += checks.check_survivor(i, left.ensemble.members[i], left.x, left.y, left.ball)
        return signals

    def _load(self, folder: RunFolder) -> Evaluation:
        deadline = time.monotonic() + VISIBLE_AFTER
        while True:
            try:
                return Evaluation.load(folder.path)
            except InputError:
                if self.ranks.world == 1 or time.monotonic() > deadline:
                    raise
                time.sleep(1)


@dataclass(frozen=True)
class _Cost:
    """What samples cost: seconds, and passes of the attack."""

    seconds: float = 0.0
    forward: int = 0
    backward: int = 0

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(self.seconds + other.seconds, self.forward + other.forward, self.backward + other.backward)

    def share(self, rows: range, of: int) -> _Cost:
        """Of these rows of a batch; the shares of all its rows add up to the whole."""
        forward, backward = (n * rows.stop // of - n * rows.start // of for n in (self.forward, self.backward))
        return _Cost(self.seconds * len(rows) / of, forward, backward)


class _Shard:
    """A shard under way: what is done of it, also before an interruption, and when that was last written."""

    def __init__(self, folder: RunFolder, k: int, version: dict[str, Any]) -> None:
        self.folder, self.k, self.version = folder, k, version
        found = folder.begun(k)
        self.parts: list[Records] = [] if found is None else [found[0]]
        self.inputs: list[Tensor] = [] if found is None or found[2] is None else [load(found[2])["x_adv"]]
        cost = {} if found is None else found[1]
        self.cost = _Cost(float(cost.get("seconds", 0.0)), int(cost.get("forward", 0)), int(cost.get("backward", 0)))
        self.kept = time.perf_counter()

    @property
    def missing(self) -> np.ndarray:
        """The samples that are still to be attacked."""
        return np.array(self.folder.rows_of(self.k)[sum(map(len, self.parts)) :])

    def add(self, records: Records, inputs: Sequence[Tensor], cost: _Cost) -> None:
        """One more batch, or its part in this shard; written if it is the last, or if much would be lost."""
        self.parts.append(records)
        self.cost += cost
        if self.folder.configuration["save_inputs"]:
            self.inputs.append(torch.stack(list(inputs), dim=1).cpu())
        if not len(self.missing) or (time.perf_counter() - self.kept > KEEP_AFTER and not self.folder.temporary):
            saved = save({"x_adv": torch.cat(self.inputs).contiguous()}) if self.inputs else None
            self.folder.commit(self.k, joined(self.parts), {**asdict(self.cost), **self.version}, saved)
            self.kept = time.perf_counter()
