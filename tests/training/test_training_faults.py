"""Bad input is refused in one line before any compute; later failures say where, and keep the last good checkpoint."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import small
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, atomic
from recarc.cli.app import run as command_line
from recarc.models import build
from recarc.models.store import save_ensemble
from recarc.training import Method, StepContext, TrainingError, loop, train
from recarc.training.checkpoint import PREVIOUS, STATE
from recarc.training.methods import barre
from recarc.training.stage_trainer import StageTrainer

OWN = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # a module that no folder can describe
DIGITS = ["--device", "cpu", "--data", "digits", "--arch", "cnn", "--norm", "linf", "--eps", "0.15"]


def changed_head() -> nn.Module:
    """A member that is no longer what its description says."""
    member = build("cnn", 10, 1, 8, width=4)
    member.net.fc = nn.Linear(3, 10)  # type: ignore[union-attr]
    return member


def of_other_images(classes: int, channels: int, image_size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))


def of_other_classes(classes: int, channels: int, image_size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(image_size**2, 7))


class OneTerm(Method):
    """Forgets to name it."""

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> Any:
        return context.loss(context.trained[0](x), y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": of_other_images}, r"of_other_images' cannot take images of \(1, 8, 8\): mat1 and mat2 shapes"),
        ({"arch": of_other_classes}, r"maps 2 images to \(2, 7\); expected logits \(2, 10\)"),
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
        ({"norm": None}, "norm and eps go together"),
        ({"eps": 0.0}, "eps is 0, which leaves nothing to train against"),
        ({"members": 0}, "members is 0"),
        ({"method": "bat", "members": 1}, "bat needs a whole number >= 2"),
        ({"seed": -1}, "seed is -1"),
        ({"changes": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"changes": {"epochs": 0}}, "epochs is 0"),
        ({"changes": {"lr": float("nan")}}, "lr is nan"),
        ({"changes": {"batch": 5000}}, "larger than the 1304 training images"),
        ({"changes": {"validation": 5000}}, "digits train has 1442 images"),
        (
            {"changes": {"validate_every": 0}},
            "validate_every is 0; expected a whole number of epochs >= 1; use validation=0 for no validation",
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
        ({"method": "bat", "start": OWN}, r"start is a single Sequential; give a list of members"),
    ],
)
def test_bad_input_is_refused_before_any_compute(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"method": "at", "data": "digits", "arch": "cnn", "norm": "linf", "eps": 0.15, **arguments}
    with pytest.raises(InputError, match=message) as caught:
        train(out=tmp_path / "out", say=None, **settings)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_terms_of_a_loss_have_names() -> None:
    with pytest.raises(InputError, match="loss of oneterm returns a Tensor; expected named terms, such as"):
        small(OneTerm(), epochs=0.1)


def test_a_large_eps_that_is_confirmed_is_accepted() -> None:
    small("at", eps=0.6, epochs=0.1, confirm=True)


def test_all_members_given_leaves_nothing_to_train(at: Any) -> None:
    with pytest.raises(InputError, match="nothing to train"):
        small("iat", members=1, start=at)


def test_barre_chooses_an_alpha_for_members_that_are_all_given(at: Any) -> None:
    members = [at.members[0], OWN]
    chosen = small("barre", members=2, start=members)
    assert abs(sum(chosen.alpha.tolist()) - 1) < 1e-6
    for given, kept in zip(members, chosen.modules_of_members):
        assert all(torch.equal(given.state_dict()[name], value) for name, value in kept.state_dict().items())


def test_weights_from_before_alpha_moved_are_not_kept(at: Any, monkeypatch: Any) -> None:
    """Their scores are of another mixture. BARRE moves alpha from its fourth member on, here after the second epoch."""
    scores = iter((0.9, 0.8, 0.7, 0.6))
    monkeypatch.setattr(barre, "EVERY", 2)
    monkeypatch.setattr(loop, "validate", lambda trainer, data: {"clean": 0.9, "attacked": next(scores)})
    rec = small("barre", members=4, start=[at.members[0]] * 3, epochs=4, changes={"validate_every": 1})
    (curve,) = rec.made_by["curve"].values()
    assert [entry["attacked"] for entry in curve["epochs"]] == [0.9, 0.8, 0.7, 0.6]
    assert curve["chosen"]["epoch"] == 3 and len(set(curve["alpha"])) > 1


def test_own_modules_can_be_given_where_nothing_is_saved() -> None:
    ensemble = small("bat", start=[OWN], epochs=0.1)
    assert [type(m).__name__ for m in ensemble.members] == ["Sequential", "Classifier"]


def test_a_loss_that_is_not_finite_names_its_step_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: Any
) -> None:
    load, steps = StageTrainer.load, []

    def poisoned(self: StageTrainer, step: int, total: int, per_epoch: int) -> None:
        load(self, step, total, per_epoch)
        steps.append(step)
        if step == 24:
            self.masters[0].net.fc.weight.data.fill_(torch.inf)  # type: ignore[union-attr,operator]

    monkeypatch.setattr(StageTrainer, "load", poisoned)
    with pytest.raises(TrainingError, match=r"not finite at step 25 .*lower the learning rate.*checkpoint of step 24"):
        small("natural", out=tmp_path / "run", epochs=3, checkpoint_minutes=0.0)
    saved = torch.load(tmp_path / "run.part" / STATE, weights_only=True)
    assert saved["step"] == 24
    (stage,) = saved["stages"].values()
    assert all(bool(torch.isfinite(t).all()) for k, t in stage["tensors"].items() if k.startswith("member"))


def test_out_of_memory_says_what_to_lower(monkeypatch: Any) -> None:
    def hungry(self: StageTrainer) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand more lines")

    monkeypatch.setattr(StageTrainer, "step", hungry)
    with pytest.raises(TrainingError, match=r"out of device memory at batch 64: .*lower the batch size") as caught:
        small("natural", epochs=1)
    assert "\n" not in str(caught.value)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    write_through, checkpoints = atomic.write_through, [0]

    def full(path: Path, data: Any) -> None:
        checkpoints[0] += path.suffix == ".pt"
        write_through(path, data[:100] if checkpoints[0] == 4 else data)
        if checkpoints[0] == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "write_through", full)
    with pytest.raises(TrainingError, match=r"the disk is full; the checkpoint of step 3 is in .*; rerun the command"):
        small("natural", out=tmp_path / "run", epochs=1, checkpoint_minutes=0.0)
    assert torch.load(tmp_path / "run.part" / STATE, weights_only=True)["step"] == 3
    assert sorted(p.name for p in (tmp_path / "run.part").iterdir()) == [".lock", PREVIOUS, STATE, "training.json"]


def test_the_command_trains_and_evaluates_its_result(tmp_path: Path, capsys: Any) -> None:
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


def test_the_command_estimates_its_cost(tmp_path: Path, capsys: Any) -> None:
    assert command_line(["train", "natural", *DIGITS, "--epochs", "2", "--out", str(tmp_path / "n")]) == 0
    shown = capsys.readouterr().err
    assert "40 steps of 64 images in 1 stage on cpu" in shown
    assert "ms per step after 20 steps: about" in shown
    assert "validation clean" in shown and "left" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
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
    arguments: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    assert command_line([*arguments, "--out", str(tmp_path / "x")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert not (tmp_path / "x").exists()


def test_a_failed_run_exits_with_one(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    def hungry(self: StageTrainer) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(StageTrainer, "step", hungry)
    assert command_line(["train", "natural", *DIGITS, "--quiet", "--out", str(tmp_path / "x")]) == 1
    assert capsys.readouterr().err.startswith("error: out of device memory at batch 64")


def test_tensorboard_is_asked_for_politely(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"tensorboard is not installed: install recarc\[tensorboard\]$"):
        small("natural", epochs=1, tensorboard=tmp_path / "board")


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_reports_pass_over_an_interrupted_training(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Checkpoints of training lie beside the runs of evaluations, and are not taken for one."""
    ensemble, run = tmp_path / "ensemble", tmp_path / "run"
    save_ensemble(RandomizedEnsemble([build("cnn", 10, 1, 8, width=4)]), ensemble)
    monkeypatch.setattr(StageTrainer, "step", lambda self: os.kill(os.getpid(), signal.SIGINT))
    assert command_line(["train", "natural", *DIGITS, "--quiet", "--out", str(tmp_path / "unfinished")]) == 3
    assert (tmp_path / "unfinished.part" / "training.json").exists()
    cheap = ["--limit", "5", "--attack", "pgd1", "--steps", "1", "--quiet", "--out", str(run)]
    assert command_line(["evaluate", str(ensemble), *DIGITS[:4], *DIGITS[-4:], *cheap]) == 0
    capsys.readouterr()
    assert command_line(["report", str(tmp_path), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    assert command_line(["report", str(tmp_path / "unfinished.part"), "--out", str(tmp_path / "none.html")]) == 2
    assert "contains no run" in capsys.readouterr().err
    assert command_line(["show", str(tmp_path / "unfinished.part")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
