"""Run folders: resumed, refused, torn, edited, full."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shlex
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import BALL, QUICK, problem, records_of

from recarc import ARC, AdaptivePGD, Ball, Evaluation, InputError, RandomizedEnsemble, evaluate, save_ensemble
from recarc.cli import app as program
from recarc.evaluation import Callback, RecarcWarning, RunError, Shard, engine
from recarc.evaluation import run_folder as folders
from recarc.evaluation.run_folder import RunFolder
from recarc.models import build
from tiny import mlp_ensemble

SHARDS = {"shard_size": 8}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ensemble, data = problem()
    out = tmp_path_factory.mktemp("finished") / "run"
    evaluate(ensemble, QUICK, data, BALL, out=out, **SHARDS)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of five shards, a copy of its own for every test."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def again(run: Path, **changes: Any) -> Evaluation:
    ensemble, data = problem()
    settings = {"ensemble": ensemble, "attack": QUICK, "data": data, "ball": BALL, **changes}
    return evaluate(**settings, out=run)


def test_a_finished_run_is_read_not_repeated(run: Path) -> None:
    times = {f: f.stat().st_mtime_ns for f in run.glob("shard-*")}
    assert len(times) == 10
    first = Evaluation.load(run)
    assert again(run).to_json() == first.to_json()
    assert {f: f.stat().st_mtime_ns for f in run.glob("shard-*")} == times


def damage(run: Path, kind: str) -> None:
    shard, side = run / "shard-00002.parquet", run / "shard-00002.json"
    data = shard.read_bytes()
    if kind == "truncated":
        shard.write_bytes(data[: len(data) // 2])
    elif kind == "empty":
        shard.write_bytes(b"")
    elif kind == "one bit":
        shard.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif kind == "of other samples":
        shard.write_bytes((run / "shard-00001.parquet").read_bytes())
        side.write_bytes((run / "shard-00001.json").read_bytes())
    elif kind == "without its side":
        side.unlink()
    elif kind == "side torn":
        side.write_text(side.read_text()[:-9])
    elif kind == "missing":
        shard.unlink()


@pytest.mark.parametrize(
    "kind", ["truncated", "empty", "one bit", "of other samples", "without its side", "side torn", "missing"]
)
def test_a_torn_shard_is_found_and_redone(run: Path, kind: str) -> None:
    whole = records_of(run)
    damage(run, kind)
    says = "4 of 5 shards" if kind == "missing" else r"shard-00002\.parquet is damaged \(.*rerun the command"
    with pytest.raises(InputError, match=says):
        Evaluation.load(run)
    partial = Evaluation.load(run, partial=True)
    assert len(partial) == 32 and any("is damaged" in line for line in partial.warnings) == (kind != "missing")
    if kind == "missing":
        again(run)
    else:
        with pytest.warns(RecarcWarning, match=r"shard-00002\.parquet is damaged"):
            again(run)
    assert records_of(run) == whole


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"attack": AdaptivePGD(steps=4)}, "attack.steps is 3 in the run and 4 now"),
        ({"attack": ARC(steps=3)}, "attack.class"),
        ({"ball": Ball("linf", 0.2)}, "ball.eps is 0.1 in the run and 0.2 now"),
        ({"ball": Ball("l2", 0.1)}, "ball.norm"),
        ({"ball": Ball("linf", 0.1, box=None)}, "ball.box"),
        ({"ensemble": problem()[0].with_alpha([0.2, 0.3, 0.5])}, "alpha"),
        ({"ensemble": mlp_ensemble(3, [0.5, 0.3, 0.2], seed=1, dtype=torch.float32)}, "members"),
        ({"data": problem(39)[1]}, "data.samples is 40 in the run and 39 now"),
        ({"precision": "float64"}, "precision"),
        ({"save_inputs": True}, "save_inputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_configuration_is_refused_by_name(run: Path, changes: dict[str, Any], named: str) -> None:
    whole = records_of(run)
    with pytest.raises(InputError, match="another configuration") as caught:
        again(run, **changes)
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert records_of(run) == whole


def test_resume_can_be_refused(run: Path) -> None:
    with pytest.raises(InputError, match="already holds a run"):
        again(run, resume=False)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        again(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda text: text.replace('"steps": 3', '"steps": 5'), "edited or damaged"),
        (lambda text: text[:50], "cannot be read"),
        (lambda text: "[]", "has format None"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has format 9"),
    ],
)
def test_an_edited_run_json_is_one_clear_line(run: Path, edit: Any, message: str) -> None:
    file = run / "run.json"
    file.write_text(edit(file.read_text()))
    for call in (lambda: again(run), lambda: Evaluation.load(run)):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize(
    "place, value",
    [
        ("samples", 10**15),
        ("samples", -3),
        ("samples", "many"),
        ("shard_size", 0),
        ("shard_size", 1e-300),
        ("alpha", [float("nan")]),
        ("alpha", "half"),
        ("data", None),
    ],
)
def test_absurd_numbers_in_run_json_are_one_clear_line(run: Path, place: str, value: Any) -> None:
    """The checksum is right: it protects from accidents, not from strangers."""
    saved = json.loads((run / "run.json").read_text())
    config = saved["configuration"]
    (config["data"] if place == "samples" else config)[place] = value
    saved["checksum"] = folders._checksum(saved)
    (run / "run.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match="cannot be true") as caught:
        Evaluation.load(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}", "\udcff"])
def test_a_run_json_that_no_parser_likes_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match="cannot be read") as caught:
        Evaluation.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_run_json_holds_the_whole_configuration(run: Path) -> None:
    saved = json.loads((run / "run.json").read_text())
    assert saved["configuration"]["attack"] == {
        "class": "AdaptivePGD",
        "steps": 3,
        "step_size": None,
        "loss": "ce",
        "random_init": False,
        "seed": 0,
        "expectation": "loss",
    }
    assert {"ball", "alpha", "members", "data", "precision", "device", "shard_size"} <= saved["configuration"].keys()
    assert {"recarc", "torch", "python"} <= saved["environment"].keys()


def test_a_run_records_the_command_that_started_it(tmp_path: Path) -> None:
    again(tmp_path / "called")
    assert "command" not in RunFolder.open(tmp_path / "called").environment
    ensemble = save_ensemble(RandomizedEnsemble([build("linear", 10, 1, 8)]), tmp_path / "my rec")
    words = ["evaluate", str(ensemble), "--data", "digits", "--limit", "4", "--eps", "0.01", "--attack", "adaptive_pgd"]
    words += ["--steps", "1", "--quiet", "--out", str(tmp_path / "typed")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert program.run(words) == 0
    command = RunFolder.open(tmp_path / "typed").environment["command"]
    assert isinstance(command, str) and shlex.split(command) == ["recarc", *words]


def test_resuming_with_another_version_warns(tmp_path: Path, monkeypatch: Any) -> None:
    def at(version: str, commit: str | None) -> None:
        monkeypatch.setattr(engine, "environment", lambda device: {**real(device), "recarc": version, "commit": commit})

    real = engine.environment
    at("0.0.1", "a" * 40)
    again(tmp_path, **SHARDS)
    assert json.loads((tmp_path / "shard-00000.json").read_text())["commit"] == "a" * 40
    for version, commit, says in (("0.0.1", "b" * 40, "commit bbbbbbbbb"), ("0.2.0", None, "resumed with 0.2.0")):
        (tmp_path / "shard-00001.parquet").unlink()
        at(version, commit)
        with pytest.warns(RecarcWarning, match=f"begun with recarc 0.0.1 .commit aaaaaaaaa.*{says}"):
            again(tmp_path)
        assert json.loads((tmp_path / "shard-00001.json").read_text())["recarc"] == version


def test_plain_callables_are_distinguished_by_their_answers(tmp_path: Path) -> None:
    _, data = problem()
    again(tmp_path, ensemble=lambda x: x[:, :5] * 3.0, data=data)
    again(tmp_path, ensemble=lambda x: x[:, :5] * 3.0, data=data)
    with pytest.raises(InputError, match="members"):
        again(tmp_path, ensemble=lambda x: x[:, :5] * 3.1, data=data)


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_full_disk_leaves_nothing_half_written(fails_at: int, tmp_path: Path, monkeypatch: Any) -> None:
    run, calls = tmp_path / "run", 0
    real = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        try:
            again(run, **SHARDS)
        except RunError as error:
            assert "No space left on device" in str(error) and "rerun the command to resume" in str(error)
    assert not list(run.glob(".*.part*"))
    if (run / "run.json").exists():
        folder = RunFolder.open(run)
        for k in range(folder.shards):
            if folder.file(k).exists():
                folder.read(k)
    result = again(run, **SHARDS)
    assert result.complete and len(records_of(run)) == 5


class Meanwhile(Callback):
    """After the first shard of a run, something happens to its folder."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens

    def shard_done(self, shard: Shard) -> None:
        if shard.index == 0:
            self.happens()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_run_whose_folder_is_replaced_or_removed_leaves_the_new_one_alone(replaced: bool, tmp_path: Path) -> None:
    path, other = tmp_path / "run", {"attack": AdaptivePGD(steps=9), "ball": Ball("linf", 0.3), **SHARDS}
    expected = again(tmp_path / "whole", **other).to_json()
    whole = records_of(tmp_path / "whole")

    def happens() -> None:
        shutil.rmtree(path)
        if replaced:
            again(path, **other)

    with pytest.raises(RunError, match="deleted or replaced"):
        again(path, callbacks=[Meanwhile(happens)], **SHARDS)
    assert path.exists() == replaced
    if replaced:
        found = again(path, **other).to_json()
        assert records_of(path) == whole and found["robust_accuracy"] == expected["robust_accuracy"]


def test_a_shard_of_another_run_is_refused_and_redone(run: Path, tmp_path: Path) -> None:
    """Such as one that another run renamed into place at the very last moment."""
    whole = records_of(run)
    other = tmp_path / "other"
    again(other, attack=AdaptivePGD(steps=9), ball=Ball("linf", 0.3), **SHARDS)
    for suffix in ("json", "parquet"):
        shutil.copy(other / f"shard-00002.{suffix}", run)
    assert records_of(run) != whole
    with pytest.raises(ValueError, match="another run"):
        RunFolder.open(run).read(2)
    with pytest.warns(RecarcWarning, match=r"shard-00002\.parquet"):
        again(run)
    assert records_of(run) == whole


def test_two_runs_that_begin_at_once_do_not_share_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    """The second one comes while the first has looked for run.json and not yet written it."""
    real, refused = folders.write_all, []

    def slow(files: dict[Path, bytes], *advice: str) -> None:
        if tmp_path / "run.json" in files and not refused:
            refused.append("")
            with pytest.raises(InputError, match="another process"):
                again(tmp_path, attack=AdaptivePGD(steps=9))
        real(files, *advice)

    monkeypatch.setattr(folders, "write_all", slow)
    assert again(tmp_path).configuration["attack"]["steps"] == 3
    assert refused and json.loads((tmp_path / "run.json").read_text())["configuration"]["attack"]["steps"] == 3


def _hold(run: Path, locked: Any) -> None:
    with folders.locked(run):
        locked.set()
        time.sleep(60)


def test_two_writers_do_not_share_a_folder(run: Path) -> None:
    context = multiprocessing.get_context("fork")
    locked = context.Event()
    holder = context.Process(target=_hold, args=(run, locked))
    holder.start()
    try:
        assert locked.wait(60)
        with pytest.raises(InputError, match="another process"):
            again(run)
    finally:
        holder.kill()
        holder.join()
    again(run)


@pytest.mark.parametrize("change", [{"seconds": "1"}, {"seconds": {}}, {"forward": []}, {"backward": 1e308}, None])
def test_a_shard_of_an_absurd_cost_is_damaged(tmp_path: Path, change: dict[str, object] | None) -> None:
    ensemble, data = problem(8)
    evaluate(ensemble, QUICK, data, BALL, out=tmp_path, shard_size=4, progress=False)
    side = tmp_path / "shard-00001.json"
    content = json.loads(side.read_text())
    side.write_text(json.dumps({"sha256": content["sha256"]} if change is None else {**content, **change}))
    with pytest.raises(InputError, match=r"shard-00001.parquet is damaged"):
        Evaluation.load(tmp_path)


@pytest.mark.parametrize("text", ['{"warnings": 3}', '{"signals": [1]}', '{"signals": [{"member": "x"}]}', "[]", "{"])
def test_a_damaged_summary_is_named(tmp_path: Path, text: str) -> None:
    """Not taken for one without warnings: they may be what the reader has to know."""
    ensemble, data = problem(4)
    evaluate(ensemble, QUICK, data, BALL, out=tmp_path, progress=False)
    (tmp_path / "summary.json").write_text(text)
    assert any("summary.json is damaged" in warning for warning in Evaluation.load(tmp_path).warnings)
