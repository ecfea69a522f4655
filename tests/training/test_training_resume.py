"""After a kill or an interruption a rerun resumes and ends where an undisturbed run ends; nothing is overwritten."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import small
from torch.nn.utils import parameters_to_vector

from recarc import InputError, RandomizedEnsemble, atomic
from recarc.models.store import load_ensemble
from recarc.training import Interrupted, SpeedOptions, TrainingError
from recarc.training.checkpoint import PREVIOUS, STATE, CheckpointFolder, sealed

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {
    "epochs": 1.5,
    "arch_options": {"width": 4, "batch_norm": True},
    "changes": {"validate_every": 1},
    "checkpoint_minutes": 0.0,  # after every step
}


def start_process(out: Path, method: str) -> subprocess.Popen[bytes]:
    code = (
        f"import sys, torch; sys.path.insert(0, {str(HERE)!r}); torch.set_num_threads(1)\n"
        f"from small_training import small\nsmall({method!r}, out={str(out)!r}, **{SETTINGS!r})\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})


def wait_for_steps(part: Path, stages: int, steps: int, process: subprocess.Popen[bytes]) -> None:
    """Until the checkpoint on the disk is that far."""
    for _ in range(3000):
        if (part / STATE).exists():
            state = torch.load(part / STATE, weights_only=True)
            if (len(state["curve"]), state["step"]) >= (stages, steps):
                return
        assert process.poll() is None, "finished before it could be killed"
        time.sleep(0.02)
    raise AssertionError("no checkpoint in time")


def test_kill_9_and_a_rerun_ends_with_the_same_weights(tmp_path: Path) -> None:
    out, part = tmp_path / "bat", tmp_path / "bat.part"
    process = start_process(out, "bat")
    wait_for_steps(part, 1, 5, process)  # in the second of two stages
    with pytest.raises(InputError, match=r"another process is writing to .*bat\.part; wait for it, or choose another"):
        small("bat", out=out, **SETTINGS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    (part / ".checkpoint.1234.part.pt").write_bytes(b"half a checkpoint")
    lines: list[str] = []
    small("bat", out=out, say=lines.append, **SETTINGS)
    assert any("resuming at stage 2" in line for line in lines)
    assert not part.exists()
    undisturbed = tmp_path / "undisturbed"
    small("bat", out=undisturbed, **{**SETTINGS, "checkpoint_minutes": 60.0})
    for i in range(2):
        name = f"member_{i}.safetensors"
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()
    made = [json.loads((folder / "ensemble.json").read_text())["made_by"] for folder in (out, undisturbed)]
    assert made[0]["curve"] == made[1]["curve"]
    assert made[0]["commit"] is None or len(made[0]["commit"].rstrip("+")) == 40
    assert made[0]["recipe"]["epochs"] == 1.5 and made[0]["seed"] == 0 and len(made[0]["fingerprint"]) == 64
    assert load_ensemble(out).alpha.tolist() == pytest.approx([0.9, 0.1])


def test_a_run_out_of_patience_does_not_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recarc.training.run import TrainingRun

    lines: list[str] = []
    changes = {"patience": 1, "validate_every": 1, "lr": 1e-9, "ema": 0.0, "weight_decay": 0.0}
    settings = {**SETTINGS, "epochs": 30, "changes": changes}
    collect = TrainingRun._collect
    monkeypatch.setattr(TrainingRun, "_collect", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(RuntimeError, match="killed"):
        small("natural", out=tmp_path / "run", **settings)
    monkeypatch.setattr(TrainingRun, "_collect", collect)
    small("natural", out=tmp_path / "run", say=lines.append, **settings)
    assert any("resuming at stage 1" in line for line in lines)
    assert not any(": epoch " in line for line in lines)


def test_a_resumed_run_knows_its_checkpoint(tmp_path: Path) -> None:
    first = CheckpointFolder(tmp_path / "run", {"seed": 0}, 60.0)
    assert first.open() is None and "no checkpoint" in first.status()
    first.save({"stages": {}, "step": 7}, 7)
    first.release()
    again = CheckpointFolder(tmp_path / "run", {"seed": 0}, 60.0)
    again.open()
    assert "the checkpoint of step 7" in again.status()


@pytest.mark.parametrize(("method", "copies", "first"), [("free", 0, 7), ("iat", 0, 7), ("bat", 1, 27)])
def test_stopped_at_any_step_a_run_resumes_exactly(
    tmp_path: Path, method: str, copies: int, first: int, monkeypatch: Any
) -> None:
    from recarc.training.loop import Loop

    settings = {**SETTINGS, "epochs": 1, "changes": {"copies": copies}}
    undisturbed = small(method, **settings)
    ends, between = iter((first, 9, 30)), Loop._between_steps
    stop_at = [next(ends)]

    def interrupted(self: Loop, step: int, stop: threading.Event) -> bool:
        if stop_at[0] == 0:
            stop.set()
        stop_at[0] -= 1
        return between(self, step, stop)

    monkeypatch.setattr(Loop, "_between_steps", interrupted)
    out = tmp_path / method
    for _ in range(2):
        with pytest.raises(Interrupted, match="rerun the command to resume"):
            small(method, out=out, **settings)
        stop_at[0] = next(ends)
    stop_at[0] = -1
    again = small(method, out=out, **settings)
    for one, other in zip(undisturbed.members, again.members):
        for a, b in zip(one.parameters(), other.parameters()):  # type: ignore[union-attr]
            assert torch.equal(a, b)


def stopped_run(out: Path, method: str, saves: int, **settings: Any) -> None:
    """A run that dies after this many checkpoints."""
    left, save = [saves], CheckpointFolder.save

    def dying(self: CheckpointFolder, state: dict[str, Any], step: int) -> None:
        save(self, state, step)
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(CheckpointFolder, "save", dying)
        small(method, out=out, **settings)


@pytest.mark.parametrize("saves", [4, 10])  # with 7 steps per stage: in the first stage, and in a later one
@pytest.mark.parametrize("first", [True, False], ids=["together, then one by one", "one by one, then together"])
def test_side_by_side_or_not_a_resumed_run_ends_the_same(tmp_path: Path, first: bool, saves: int) -> None:
    settings = {**SETTINGS, "epochs": 0.5, "arch": "linear", "arch_options": {}}
    stopped_run(tmp_path / "run", "dverge", saves, speed=SpeedOptions(side_by_side=first), **settings)
    resumed = small("dverge", out=tmp_path / "run", speed=SpeedOptions(side_by_side=not first), **settings)
    assert torch.equal(parameters(resumed), parameters(small("dverge", **settings)))


def test_a_run_resumes_on_another_kind_of_device(tmp_path: Path) -> None:
    stopped_run(tmp_path / "run", "at", 3, **SETTINGS)
    path, lines = tmp_path / "run.part" / STATE, []
    state = torch.load(path, weights_only=True)
    for stage in state["stages"].values():  # as a GPU's generator leaves it
        stage |= {"device": "cuda", "generator": torch.zeros(16, dtype=torch.uint8)}
    path.write_bytes(sealed(state))
    small("at", out=tmp_path / "run", **{**SETTINGS, "say": lines.append})
    assert "started on cuda: the random numbers differ from here on" in lines


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_from_a_gpu_to_a_cpu_and_back(tmp_path: Path, first: str, second: str) -> None:
    stopped_run(tmp_path / "run", "dverge", 3, **{**SETTINGS, "device": first})
    assert len(small("dverge", out=tmp_path / "run", **{**SETTINGS, "device": second})) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("method", ["at", "free"])
def test_on_a_gpu_a_resumed_run_ends_nearly_the_same(tmp_path: Path, method: str, monkeypatch: Any) -> None:
    """The differences are those between two runs of the same command: the order of sums."""
    from recarc.training.loop import Loop

    settings = {**SETTINGS, "epochs": 1, "device": "cuda"}
    undisturbed, again = (parameters(small(method, **settings)) for _ in range(2))
    between = Loop._between_steps
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Loop, "_between_steps", lambda self, step, stopped: between(self, step, step == 7))
        small(method, out=tmp_path / "run", **settings)
    resumed = parameters(small(method, out=tmp_path / "run", **settings))
    noise = float((again - undisturbed).norm() / undisturbed.norm())
    assert float((resumed - undisturbed).norm() / undisturbed.norm()) < max(0.02, 3 * noise)


def parameters(ensemble: RandomizedEnsemble) -> torch.Tensor:
    return parameters_to_vector(ensemble.members[0].parameters()).detach()  # type: ignore[union-attr]


def test_a_finished_folder_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "done"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(InputError, match="already exists and is not empty"):
        small("at", out=out)
    assert (out / "precious").read_text() == "x"


def test_an_unfinished_run_of_another_command_is_not_touched(tmp_path: Path, monkeypatch: Any) -> None:
    from recarc.training.loop import Loop

    out, between = tmp_path / "run", Loop._between_steps

    def stopped(self: Loop, step: int, stop: threading.Event) -> bool:
        stop.set()
        return between(self, step, stop)

    monkeypatch.setattr(Loop, "_between_steps", stopped)
    with pytest.raises(Interrupted):
        small("natural", out=out, epochs=1)
    before = (tmp_path / "run.part" / STATE).read_bytes()
    with pytest.raises(InputError, match=r"another unfinished run .*seed is 0 in that run and 1 now"):
        small("natural", out=out, epochs=1, seed=1)
    with pytest.raises(InputError, match=r"recipe\.lr is 0\.1 in that run and 0\.05 now"):
        small("natural", out=out, epochs=1, changes={"lr": 0.05})
    assert (tmp_path / "run.part" / STATE).read_bytes() == before
    (tmp_path / "run.part" / STATE).write_bytes(before[: len(before) // 2])
    with pytest.raises(InputError, match=r"is damaged .*delete"):
        small("natural", out=out, epochs=1)


def opened(out: Path) -> CheckpointFolder:
    folder = CheckpointFolder(out, {"seed": 0}, 0.0)
    assert folder.open() is None
    return folder


def test_one_run_at_a_time_holds_a_checkpoint_folder(tmp_path: Path) -> None:
    out, part = tmp_path / "run", tmp_path / "run.part"
    first = opened(out)
    with pytest.raises(InputError, match="another process is writing to"):
        opened(out)
    (part / ".checkpoint.1.part.pt").touch()
    first.release()
    second = opened(out)
    assert sorted(p.name for p in part.iterdir()) == [".lock", "training.json"]
    out.mkdir()
    (out / "ensemble.json").touch()
    second.close()
    assert not part.exists()


def test_processes_that_start_at_the_same_time_do_not_mix(tmp_path: Path, monkeypatch: Any) -> None:
    out, acquire = tmp_path / "run", atomic.lock_folder
    first: list[CheckpointFolder] = []

    def late(folder: Path) -> Any:
        """Another process takes the folder after this one found none."""
        monkeypatch.setattr(atomic, "lock_folder", acquire)
        first.append(opened(out))
        return acquire(folder)

    monkeypatch.setattr(atomic, "lock_folder", late)
    with pytest.raises(InputError, match="another process is writing to"):
        opened(out)
    first[0].save({"step": 1}, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["run.part"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "run.part"
    other.mkdir()
    (other / "notes.txt").touch()
    with pytest.raises(InputError, match=r"run\.part is not an unfinished run of `recarc train`: move it or choose"):
        opened(tmp_path / "run")
    assert [p.name for p in other.iterdir()] == ["notes.txt"]


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_resumed(tmp_path: Path) -> None:
    """Any single bit: torch.load alone gives other weights without a word."""
    out, part = tmp_path / "run", tmp_path / "run.part"
    first = opened(out)
    for step in (3, 5):
        first.save({"step": step, "stages": {}, "weights": torch.arange(100.0)}, step)
    first.release()
    newest, previous = (part / STATE).read_bytes(), (part / PREVIOUS).read_bytes()
    for position in range(7, 8 * len(newest), 8 * len(newest) // 16):
        damaged = bytearray(newest)
        damaged[position // 8] ^= 1 << position % 8
        (part / STATE).write_bytes(damaged)
        (part / PREVIOUS).write_bytes(previous)
        folder = CheckpointFolder(out, {"seed": 0}, 60.0)
        state = folder.open()
        folder.release()
        assert state is not None and state["step"] == 3 and torch.equal(state["weights"], torch.arange(100.0))
        assert "checkpoint.pt is damaged" in folder.note and "the one before, of step 3" in folder.note
        assert (part / STATE).read_bytes() == previous  # never rotated away by the next one
    (part / STATE).write_bytes(newest[:-1])
    with pytest.raises(InputError, match="no whole one before it: delete"):
        CheckpointFolder(out, {"seed": 0}, 60.0).open()


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    undisturbed, lines = small("natural", **SETTINGS), []
    stopped_run(tmp_path / "run", "natural", 5, **SETTINGS)
    (tmp_path / "run.part" / STATE).write_bytes(b"")
    resumed = small("natural", out=tmp_path / "run", **{**SETTINGS, "say": lines.append})
    assert any("resuming from the one before, of step 4" in line for line in lines)
    one, other = undisturbed.members[0], resumed.members[0]
    assert torch.equal(parameters_to_vector(one.parameters()), parameters_to_vector(other.parameters()))  # type: ignore[union-attr]


def test_a_checkpoint_folder_that_vanished_is_not_recreated(tmp_path: Path) -> None:
    out, part = tmp_path / "run", tmp_path / "run.part"
    first = opened(out)
    first.save({"step": 0}, 1)
    shutil.rmtree(part)
    with pytest.raises(TrainingError, match=r"run\.part was deleted or moved during training"):
        first.save({"step": 0}, 2)
    assert not part.exists()
    second = opened(out)
    second.save({"step": 7}, 3)
    with pytest.raises(TrainingError, match="deleted or moved"):
        first.save({"step": 0}, 4)
    first.close()
    assert torch.load(part / STATE, weights_only=True) == {"step": 7}


def test_ctrl_c_ends_after_a_step_with_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "natural"
    settings = {**SETTINGS, "epochs": 40, "checkpoint_minutes": 60.0}

    def say(line: str) -> None:
        if "epoch 2/" in line:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="step 40"):
        small("natural", out=out, say=say, **settings)
    assert torch.load(tmp_path / "natural.part" / STATE, weights_only=True)["step"] == 40
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_last_validation_is_not_swallowed(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    from recarc.training import loop

    out, settings, calls = tmp_path / "natural", {**SETTINGS, "epochs": 0.2, "checkpoint_minutes": 60.0}, []
    undisturbed = small("natural", members=2, **settings)

    def signalled(trainer: Any, data: Any) -> dict[str, float]:
        calls.append(trainer.stage.name)
        if len(calls) == 1:
            os.kill(os.getpid(), number)
        return validate(trainer, data)

    validate = loop.validate
    monkeypatch.setattr(loop, "validate", signalled)
    with pytest.raises(Interrupted, match=r"checkpoint of step 4 .*rerun"):
        small("natural", members=2, out=out, **settings)
    resumed = small("natural", members=2, out=out, **settings)
    assert len(calls) == 2  # the first member was finished
    for one, other in zip(undisturbed.members, resumed.members):
        assert torch.equal(parameters_to_vector(one.parameters()), parameters_to_vector(other.parameters()))  # type: ignore[union-attr]


def test_a_signal_that_nobody_noticed_ends_the_run_after_the_loop() -> None:
    from recarc.training.loop import stop_signals

    with pytest.raises(KeyboardInterrupt), stop_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
