"""Results out: data frame, CSV, JSON, and the callbacks that feed a tracker."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import BALL, QUICK, problem

from recarc import PGD, Evaluation, InputError, RandomAttacker, Tight, evaluate
from recarc.errors import RecarcWarning
from recarc.evaluation.progress import Callback, Shard


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_csv_holds_what_the_figures_follow_from(tmp_path: Path) -> None:
    ensemble, data = problem(20)
    result = evaluate(ensemble, Tight("quick"), data, BALL, progress=False)
    rows = rows_of(result.to_csv(tmp_path / "samples.csv"))
    assert len(rows) == 20 and list(rows[0])[:5] == ["index", "label", "clean_score", "robust_score", "floor"]
    right = np.array([[r[f"attacked_{i}"] == r["label"] for r in rows] for i in range(3)])
    assert np.isclose((result.alpha @ right).mean(), result.robust_accuracy)
    assert {r["decided_by"] for r in rows} <= {*result.stages, "none"}
    assert np.isclose(np.mean([float(r["floor"]) for r in rows]), result.floor)


def test_csv_says_nothing_of_a_member_that_was_not_attacked(tmp_path: Path) -> None:
    ensemble, data = problem(10)
    result = evaluate(ensemble.with_alpha([0.5, 0.5, 0]), Tight("quick"), data, BALL, progress=False)
    rows = rows_of(result.to_csv(tmp_path / "samples.csv"))
    assert {row["robust_alone_2"] for row in rows} == {""}
    assert {row["robust_alone_0"] for row in rows} <= {"True", "False"}


def test_csv_holds_no_formulas_and_no_control_characters(tmp_path: Path, monkeypatch: Any) -> None:
    ensemble, data = problem(4)
    result = evaluate(ensemble, Tight("quick"), data, BALL, progress=False)
    names = ["=cmd|'/C calc'!A0", "\t=1+1", "@SUM(1)", "a\r\nb\x1b[2J", "-1", " +1"]
    for name in names:
        monkeypatch.setattr(Evaluation, "stages", {name: None})
        monkeypatch.setattr(Evaluation, "decided_by", np.zeros(4, np.int8))
        (cell,) = {row["decided_by"] for row in rows_of(result.to_csv(tmp_path / "samples.csv"))}
        assert cell.isprintable() and cell.lstrip()[0] not in "=+-@\t", cell


def test_csv_of_an_attacker_that_draws(tmp_path: Path) -> None:
    ensemble, data = problem(6)
    result = evaluate(ensemble, RandomAttacker(PGD(steps=2)), data, BALL, progress=False)
    rows = rows_of(result.to_csv(tmp_path / "samples.csv"))
    assert {"attacked_0_0", "attacked_2_1", "norm_2"} <= set(rows[0])
    assert np.isclose(np.mean([float(r["robust_score"]) for r in rows]), result.robust_accuracy)


def test_pandas() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: `make peers`")
    ensemble, data = problem(10)
    result = evaluate(ensemble, QUICK, data, BALL, progress=False)
    frame = result.to_pandas()
    assert len(frame) == 10 and np.isclose(frame["robust_score"].mean(), result.robust_accuracy)
    assert frame.attrs["robust_accuracy"] == result.robust_accuracy
    json.dumps(frame.attrs)


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, data = problem(4)
    result = evaluate(ensemble, QUICK, data, BALL, progress=False)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(InputError, match=r"install recarc\[pandas\], or use to_csv"):
        result.to_pandas()


class Diary(Callback):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def run_started(self, configuration: dict[str, Any], samples: int, shards: int) -> None:
        self.events.append(("started", (configuration["attack"]["class"], samples, shards)))

    def shard_done(self, shard: Shard) -> None:
        self.events.append(("shard", shard))

    def run_ended(self, evaluation: Evaluation) -> None:
        self.events.append(("ended", evaluation))


def test_callbacks_hear_three_moments(tmp_path: Path) -> None:
    ensemble, data = problem(20)
    diary = Diary()
    result = evaluate(
        ensemble, QUICK, data, BALL, progress=False, shard_size=8, out=tmp_path / "run", callbacks=[diary]
    )
    assert [moment for moment, _ in diary.events] == ["started", "shard", "shard", "shard", "ended"]
    assert diary.events[0][1] == ("AdaptivePGD", 20, 3)
    shards = [shard for moment, shard in diary.events if moment == "shard"]
    assert [s.samples for s in shards] == [8, 8, 4]
    assert np.isclose(sum(s.samples * s.robust_accuracy for s in shards) / 20, result.robust_accuracy)
    assert diary.events[-1][1] is result
    again = Diary()
    evaluate(ensemble, QUICK, data, BALL, progress=False, out=tmp_path / "run", callbacks=[again])
    assert [moment for moment, _ in again.events] == ["started", "ended"] and again.events[0][1][2] == 0


def test_a_tracker_that_fails_does_not_cost_the_run() -> None:
    class Broken:
        def shard_done(self, shard: Shard) -> None:
            raise ConnectionError("no route to the tracker")

    ensemble, data = problem(6)
    with pytest.warns(RecarcWarning, match=r"Broken.shard_done failed \(ConnectionError: no route.*the run continues"):
        assert len(evaluate(ensemble, QUICK, data, BALL, progress=False, callbacks=[Broken()])) == 6


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: `make peers`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from recarc.adapters.tensorboard import TensorBoard

    ensemble, data = problem(20)
    result = evaluate(
        ensemble, QUICK, data, BALL, progress=False, shard_size=8, callbacks=[TensorBoard(tmp_path / "logs")]
    )
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [e.step for e in events.Scalars("so_far/robust_accuracy")] == [8, 16, 20]
    assert np.isclose(events.Scalars("robust_accuracy")[0].value, result.robust_accuracy)
    assert np.isclose(events.Scalars("so_far/robust_accuracy")[-1].value, result.robust_accuracy)


def test_a_full_disk_leaves_the_old_csv(tmp_path: Path, monkeypatch: Any) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            file.write("half")

        def writerow(self, row: Any) -> None:
            raise OSError("No space left on device")

    ensemble, data = problem()
    result = evaluate(ensemble, QUICK, data, BALL)
    path = result.to_csv(tmp_path / "rows.csv")
    whole = path.read_text()
    monkeypatch.setattr(csv, "writer", Full)
    with pytest.raises(OSError, match="No space"):
        result.to_csv(path)
    assert path.read_text() == whole and [f.name for f in tmp_path.iterdir()] == ["rows.csv"]
