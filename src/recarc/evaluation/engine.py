"""`evaluate`: shards of samples, each attacked, judged and put on disk; resumable, on one process or many."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble, frozen
from recarc.errors import InputError, RunError
from recarc.evaluation import checks
from recarc.evaluation.callbacks import Shard, tell
from recarc.evaluation.fingerprint import Json, configuration, environment
from recarc.evaluation.judge import Judge
from recarc.evaluation.prepare import (
    check_attack,
    check_ball,
    default_shard,
    default_tile,
    first_logits,
    search_tile,
    size,
)
from recarc.evaluation.progress import Progress, bar
from recarc.evaluation.records import Records, joined
from recarc.evaluation.result import Evaluation
from recarc.evaluation.resume import answers_of, check_answers, check_rank, compare_versions
from recarc.evaluation.run_folder import RUN, SUMMARY, Answers, RunFolder, locked, write_all
from recarc.evaluation.samples import Samples, TensorSamples, as_samples
from recarc.evaluation.tiling import Passes, input_dtype, reproducible, tiled
from recarc.geometry import Ball
from recarc.inputs import check_finite, check_labels
from recarc.runtime import COARSE, Ranks, check_precision, joined_ranks

FIRST = 16  # samples whose logits stand for a plain callable in the fingerprint
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
    precision: str | None = None,
    shard_size: int | str = "auto",
    tile: int | str = "auto",
    callbacks: Sequence[Any] = (),
) -> Evaluation:
    """Attack every sample of `data` and report what is left of the accuracy.

    `data`: an image set, a pair (x, y) of tensors or arrays, a torch Dataset, or a DataLoader that does not shuffle.

    Every adversarial input is checked again (norm, box, prediction in float32); an attack that cheats raises
    `AttackViolation`. With `out`, records go to that folder shard by shard and the same call goes on where it stopped;
    under `torchrun` the shards are dealt out to the ranks. `precision` is that of the attack's own computations.
    `callbacks` (see `recarc.evaluation.callbacks.Callback`) are told when the run starts, a shard is done, it ends.
    """
    ensemble, samples = as_ensemble(ensemble), as_samples(data)
    with checks.heard() as warned, ExitStack() as stack:
        checks.check_modes(ensemble)
        ranks = stack.enter_context(joined_ranks())
        if out is None and ranks.world > 1:
            raise InputError("several processes need a common run folder: pass out=...")
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out)
        stack.enter_context(frozen(ensemble))
        engine = ranks.together(
            lambda: _Engine.prepared(ensemble, attack, samples, ball, path, precision, shard_size, tile, batch_size)
        )
        stack.enter_context(reproducible(engine.device))
        result = engine.run(ranks, resume, progress, save_inputs, callbacks, warned)
    if out is None:
        result.path = None
    if ranks.first:
        tell(callbacks, "run_ended", result)
    return result


@dataclass
class _Engine:
    ensemble: RandomizedEnsemble
    samples: Samples
    ball: Ball
    judge: Judge
    passes: Passes
    device: torch.device
    path: Path
    batch_size: int
    smallest: int
    classes: int
    settings: Json
    first_logits: Tensor
    answers: Answers

    @classmethod
    def prepared(
        cls,
        ensemble: RandomizedEnsemble,
        attack: Any,
        samples: Samples,
        ball: Ball,
        path: Path,
        precision: str | None,
        shard_size: int | str,
        tile: int | str,
        batch_size: int | str,
    ) -> _Engine:
        """Everything that can be refused is refused here, before any attack."""
        x = samples.batch(np.arange(min(FIRST, len(samples))))[0]
        device = ensemble.device_of_members() or x.device
        there = RunFolder.open(path).configuration if (path / RUN).exists() else {}
        shard = size("shard_size", shard_size, there.get("shard_size", default_shard(device, x)))
        tile = size("tile", tile, there.get("tile", default_tile(device, x)))
        check_ball(ball, len(samples))
        if precision is not None:
            check_precision(precision, device)
        check_attack(attack)
        passes = Passes()
        members = tiled(ensemble, tile, Passes())
        with reproducible(device), torch.no_grad():
            logits = first_logits(ensemble, members, x.to(device).float(), samples)
            again = members.logits(x.to(device).float())
        if isinstance(samples, TensorSamples):
            samples.check(ball)
        if hasattr(attack, "check_fit"):
            attack.check_fit(len(ensemble), logits.shape[-1], ball)
        wide = tile if precision not in COARSE else search_tile(device, x, tile, len(samples))
        searched = tiled(ensemble, tile, passes, precision, wide)
        settings = {
            "precision": precision or "as the members",
            "device": device.type,
            "shard_size": shard,
            "tile": tile,
        }
        return cls(
            ensemble=ensemble,
            samples=samples,
            ball=ball,
            judge=Judge(members, searched, attack, input_dtype(precision), precision in COARSE),
            passes=passes,
            device=device,
            path=path,
            batch_size=min(size("batch_size", batch_size, shard), shard),
            smallest=min(wide, shard),
            classes=logits.shape[-1],
            settings=settings,
            first_logits=logits,
            answers=answers_of(ensemble, logits, again),
        )

    def run(
        self,
        ranks: Ranks,
        resume: bool,
        progress: bool,
        save_inputs: bool,
        callbacks: Sequence[Any],
        warned: Sequence[str],
    ) -> Evaluation:
        told = configuration(
            self.ensemble,
            self.judge.attack,
            self.samples,
            self.ball,
            self.first_logits,
            **self.settings,
            save_inputs=save_inputs,
        )

        here = environment(self.device)
        with ExitStack() as stack:

            def begin() -> RunFolder:
                stack.enter_context(locked(self.path))
                folder = RunFolder.create_or_join(self.path, told, here, resume, self.answers)
                check_answers(folder, self.ensemble, self.answers)
                return folder

            folder = ranks.agree(begin)
            ranks.together(lambda: check_rank(folder, told, self.ensemble, self.answers))
            todo = ranks.agree(lambda: self._todo(folder, here))
            blind = self._blind_members() if todo and ranks.first else []
            if ranks.first:
                folder.keep_said(warned, blind)
                tell(callbacks, "run_started", told, len(self.samples), len(todo))
            mine = todo[ranks.rank :: ranks.world]
            self._attack_shards(folder, mine, here, progress and ranks.first, save_inputs, callbacks)
            ranks.wait()
            result = self._result(folder, ranks)
            if ranks.first:
                checks.check_result(result, self.classes)
                result.warnings = list(dict.fromkeys([*result.warnings, *warned]))
                write_all({self.path / SUMMARY: json.dumps(result.to_json(), indent=2).encode()})
        return result

    def _todo(self, folder: RunFolder, here: Json) -> list[int]:
        folder.sweep()
        todo, damaged = folder.pending()
        if todo:
            compare_versions(folder, here)
        for k in damaged:
            checks.warn(f"{folder.file(k)} is damaged and will be computed again")
        return todo

    def _blind_members(self) -> list[int]:
        x, y = self._batch(np.arange(min(checks.PROBE, len(self.samples))))
        return checks.check_members(self.judge.members, x.float(), y, self.ball)

    def _attack_shards(
        self,
        folder: RunFolder,
        mine: list[int],
        here: Json,
        progress: bool,
        save_inputs: bool,
        callbacks: Sequence[Any],
    ) -> None:
        with bar(sum(len(folder.rows_of(k)) for k in mine), progress, self.passes) as shown:
            for k in mine:
                start = time.perf_counter()
                self.passes.forward = self.passes.backward = 0
                records, inputs = self._shard(np.array(folder.rows_of(k)), shown, save_inputs)
                cost = {
                    "seconds": time.perf_counter() - start,
                    "forward": self.passes.forward,
                    "backward": self.passes.backward,
                }
                folder.commit(k, records, {**cost, "recarc": here["recarc"], "commit": here["commit"]}, inputs)
                part = Evaluation(records, self.ensemble.alpha.numpy())
                figures = part.clean_accuracy, part.robust_accuracy
                tell(callbacks, "shard_done", Shard(k, len(records), *figures, cost["seconds"]))

    def _shard(self, index: np.ndarray, shown: Progress, save_inputs: bool) -> tuple[Records, bytes | None]:
        """All batches of a shard; a batch that does not fit into memory is halved."""
        parts: list[Records] = []
        kept: list[Tensor] = []
        start = 0
        while start < len(index):
            rows = index[start : start + self.batch_size]
            before = Passes(self.passes.forward, self.passes.backward)
            try:
                x, y = self._batch(rows)
                ball = self.ball.take(torch.from_numpy(rows))
                records, inputs = self.judge.batch(x, y, ball, rows)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                self.passes.forward, self.passes.backward = before.forward, before.backward
                self._halve(len(rows))
                continue
            parts.append(records)
            if save_inputs:
                kept.append(torch.stack(inputs, dim=1).cpu())
            shown.advance(len(rows), self._score(records))
            start += len(rows)
        return joined(parts), _safetensors(torch.cat(kept)) if save_inputs else None

    def _batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        x, y = self.samples.batch(rows)
        check_finite(x, int(rows[0]))
        self.ball.take(torch.from_numpy(rows)).check(x)
        check_labels(y, self.classes)
        return x.to(self.device), y.to(self.device)

    def _halve(self, tried: int) -> None:
        if tried <= self.smallest:
            raise RunError(
                f"out of memory with a batch of {tried}; members are fed {self.smallest} samples at a time, "
                "so choose a smaller tile and another run folder"
            ) from None
        self.batch_size = max(self.smallest, tried // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _score(self, records: Records) -> float:
        """Sum of the expected accuracies of a batch, for the bar."""
        right = (records.adversarial == records.labels).sum(2)  # (J, M)
        return float(records.weights @ right @ self.ensemble.alpha.numpy())

    def _result(self, folder: RunFolder, ranks: Ranks) -> Evaluation:
        deadline = time.monotonic() + VISIBLE_AFTER
        while True:
            try:
                return Evaluation.load(folder.path)
            except InputError:
                if ranks.world == 1 or time.monotonic() > deadline:
                    raise
                time.sleep(1)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _safetensors(x_adv: Tensor) -> bytes:
    from safetensors.torch import save

    return save({"x_adv": x_adv.contiguous()})
