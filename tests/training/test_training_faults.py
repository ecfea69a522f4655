"""Bad input is refused in one line before any compute; what fails later says where, and keeps what is good."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import small
from torch import nn

from recarc import InputError, RandomizedEnsemble
from recarc.cli.app import run as command_line
from recarc.models import build
from recarc.training import TrainingError, train
from recarc.training.checkpoint import STATE, RunFolder
from recarc.training.stage_trainer import Lane

OWN = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # a module that no folder can describe
DIGITS = ["--device", "cpu", "--data", "digits", "--arch", "cnn", "--norm", "linf", "--eps", "0.15"]


def changed_head() -> nn.Module:
    """A member that is no longer what its description says."""
    member = build("cnn", 10, 1, 8, width=4)
    member.net.fc = nn.Linear(3, 10)  # type: ignore[union-attr]
    return member


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"method": "batt"}, r"unknown training method 'batt' \(did you mean 'bat'\?\)"),
        ({"arch": "resnet02"}, r"unknown architecture 'resnet02' \(did you mean 'resnet20'\?\)"),
        ({"data": "cifar01"}, "cifar10"),
        ({"recipe": "pape"}, "did you mean 'paper'"),
        ({"recipe": "paper"}, "no recipe for digits"),
        ({"eps": 8}, r"did you mean 8/255\?"),
        ({"norm": "l2", "eps": 3.0}, r"did you mean 3/255\?"),
        ({"norm": "l2", "eps": 128}, r"did you mean 128/255\?"),
        ({"eps": -0.1}, "finite number >= 0"),
        ({"norm": None, "eps": None}, "at attacks while training: give norm and eps"),
        ({"norm": None}, "norm and eps belong together"),
        ({"eps": 0.0}, "eps is 0, which leaves nothing to train against"),
        ({"members": 0}, "members is 0"),
        ({"method": "bat", "members": 1}, "at least 2"),
        ({"seed": -1}, "seed is -1"),
        ({"changes": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"changes": {"epochs": 0}}, "epochs is 0"),
        ({"changes": {"lr": float("nan")}}, "lr is nan"),
        ({"changes": {"batch": 5000}}, "larger than the 1304 training images"),
        ({"changes": {"validation": 5000}}, "digits train has 1442 images"),
        (
            {"changes": {"validate_every": 0}},
            "validate_every is 0; expected a whole number >= 1 .*validation=0 for none",
        ),
        ({"changes": {"validate_every": 1.5}}, "validate_every is 1.5"),
        ({"changes": {"warmup": 0}}, r"warmup is 0; expected a fraction of the run in \(0, 1\)"),
        ({"changes": {"warmup": 1.0}}, "warmup is 1.0"),
        ({"changes": {"schedule": "one-cycel"}}, "did you mean 'one-cycle'"),
        ({"alpha": [0.5, 0.4]}, "alpha has 2 values for 1 members"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"start": "nowhere"}, "nowhere is not an ensemble folder"),
        ({"method": "bat", "start": [OWN]}, r"member 0 of start \(Sequential\) does not say how to rebuild"),
        ({"method": "bat", "start": [build("cnn", 7, 1, 8)]}, "member 0 of start has 7 classes, but the data have 10"),
        ({"method": "bat", "start": [changed_head()]}, "member 0 of start does not fit its own description"),
        ({"method": "bat", "start": [torch.relu]}, "member 0 of start is a builtin.*, not a torch.nn.Module"),
        ({"method": "bat", "start": RandomizedEnsemble([OWN, torch.relu])}, "member 1 of start is a builtin"),
        ({"method": "bat", "start": OWN}, r"start is one Sequential; give a list of members"),
    ],
)
def test_bad_input_is_refused_before_any_compute(arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
    settings = {"method": "at", "data": "digits", "arch": "cnn", "norm": "linf", "eps": 0.15, **arguments}
    with pytest.raises(InputError, match=told) as caught:
        train(out=tmp_path / "out", say=None, **settings)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_large_eps_that_is_meant_is_taken() -> None:
    small("at", eps=0.6, epochs=0.1, confirm=True)


def test_all_members_given_leaves_nothing_to_train(at: Any) -> None:
    with pytest.raises(InputError, match="nothing to train"):
        small("iat", members=1, start=at)


def test_own_modules_can_be_given_where_nothing_is_saved() -> None:
    ensemble = small("bat", start=[OWN], epochs=0.1)
    assert [type(m).__name__ for m in ensemble.members] == ["Sequential", "Classifier"]


def test_a_loss_that_is_not_finite_names_its_step_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: Any
) -> None:
    load, steps = Lane.load, []

    def poisoned(self: Lane, step: int, total: int, an_epoch: int) -> None:
        load(self, step, total, an_epoch)
        steps.append(step)
        if step == 24:
            self.masters[0].net.fc.weight.data.fill_(torch.inf)  # type: ignore[union-attr,operator]

    monkeypatch.setattr(Lane, "load", poisoned)
    with pytest.raises(TrainingError, match=r"not finite at step 25 .*lower the learning rate.*checkpoint of step 24"):
        small("natural", out=tmp_path / "run", epochs=3, checkpoint_minutes=0.0)
    kept = torch.load(tmp_path / "run.part" / STATE, weights_only=True)
    assert kept["step"] == 24
    (lane,) = kept["lanes"].values()
    assert all(bool(torch.isfinite(t).all()) for k, t in lane["tensors"].items() if k.startswith("member"))


def test_out_of_memory_says_what_to_lower(monkeypatch: Any) -> None:
    def hungry(self: Lane) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand more lines")

    monkeypatch.setattr(Lane, "step", hungry)
    with pytest.raises(TrainingError, match=r"out of device memory at batch 64: .*lower the batch size") as caught:
        small("natural", epochs=1)
    assert "\n" not in str(caught.value)


def test_a_full_disk_keeps_the_checkpoint_that_is_there(tmp_path: Path, monkeypatch: Any) -> None:
    write, count = RunFolder._write, [0]

    def full(self: RunFolder, path: Path, data: Any) -> None:
        count[0] += path.name == STATE
        if count[0] < 4:
            return write(self, path, data)
        real_open = Path.open

        def broken(path: Path, *args: Any, **more: Any) -> Any:
            file = real_open(path, *args, **more)
            if path.name.endswith(".new"):
                return _FullFile(file)
            return file

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", broken)
            return write(self, path, data)

    monkeypatch.setattr(RunFolder, "_write", full)
    with pytest.raises(TrainingError, match=r"the disk is full; the checkpoint of step 3 is in .*goes on from there"):
        small("natural", out=tmp_path / "run", epochs=1, checkpoint_minutes=0.0)
    assert torch.load(tmp_path / "run.part" / STATE, weights_only=True)["step"] == 3
    assert sorted(p.name for p in (tmp_path / "run.part").iterdir()) == [".lock", STATE, "run.json"]


class _FullFile(io.RawIOBase):
    """A file on a disk without room."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self._file.close()


def test_the_command_trains_and_evaluates_its_result(tmp_path: Path, capsys: Any) -> None:
    import json

    out = tmp_path / "natural"
    options = ["--arch-option", "width=4", "--arch-option", "batch_norm=true", "--set", "momentum=0.8"]
    knobs = [*DIGITS, *options, "--epochs", "1", "--out", str(out)]
    code = command_line(["train", "natural", *knobs, "--json", "--quiet"])
    shown = capsys.readouterr()
    assert code == 0 and shown.err == ""
    assert json.loads(shown.out) == {"out": str(out), "method": "natural", "members": 1, "alpha": [1.0]}
    made = json.loads((out / "ensemble.json").read_text())["made_by"]
    assert made["method"] == "natural" and made["machine"]["device"] == "cpu" and made["curve"]["member 1"]["epochs"]
    assert made["arch_options"] == {"width": 4, "batch_norm": True} and made["recipe"]["momentum"] == 0.8
    cheap = ["--limit", "20", "--attack", "arc", "--steps", "2"]
    assert command_line(["evaluate", str(out), *DIGITS[:4], *DIGITS[-4:], *cheap]) == 0
    capsys.readouterr()
    assert command_line(["train", "natural", *knobs]) == 2
    assert "already exists" in capsys.readouterr().err


def test_the_command_says_what_it_will_cost(tmp_path: Path, capsys: Any) -> None:
    assert command_line(["train", "natural", *DIGITS, "--epochs", "2", "--out", str(tmp_path / "n")]) == 0
    told = capsys.readouterr().err
    assert "40 steps of 64 images in 1 stage on cpu" in told
    assert "ms a step after 20 steps: about" in told
    assert "validation clean" in told and "left" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "bta", *DIGITS], "did you mean 'bat'"),
        (["train", "at", *DIGITS[:-1], "8"], "did you mean 8/255?"),
        (["train", "at", *DIGITS[:-1], "eight"], "--eps is 'eight'"),
        (["train", "at", *DIGITS, "--set", "lr"], "FIELD=VALUE"),
        (["train", "at", *DIGITS, "--set", "lrr=1"], "unknown recipe field 'lrr'"),
        (["train", "at", *DIGITS, "--arch-option", "width"], "--arch-option takes NAME=VALUE, got 'width'"),
        (["train", "at", *DIGITS, "--arch-option", "widht=4"], "unknown option of cnn 'widht' (did you mean 'width'?)"),
        (["train", "at", *DIGITS, "--arch-option", "batch_norm=1"], "batch_norm must be true or false"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: Any
) -> None:
    assert command_line([*arguments, "--out", str(tmp_path / "x")]) == 2
    shown = capsys.readouterr()
    assert told in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert not (tmp_path / "x").exists()


def test_a_failed_run_exits_with_one(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    def hungry(self: Lane) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Lane, "step", hungry)
    assert command_line(["train", "natural", *DIGITS, "--quiet", "--out", str(tmp_path / "x")]) == 1
    assert capsys.readouterr().err.startswith("error: out of device memory at batch 64")


def test_tensorboard_is_asked_for_politely(tmp_path: Path, monkeypatch: Any) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'recarc\[tensorboard\]'"):
        small("natural", epochs=1, tensorboard=tmp_path / "board")
