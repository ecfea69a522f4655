"""The command line: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from interpreter import run_python
from recarc import RandomizedEnsemble, load_ensemble, save_ensemble
from recarc.attacks.registry import attack_named, names
from recarc.cli import app as program
from recarc.cli.options import number, numbers
from recarc.errors import InputError
from recarc.evaluation.fingerprint import fingerprint
from recarc.models import build

QUICK = ["--data", "digits", "--limit", "24", "--eps", "1/10", "--attack", "adaptive_pgd", "--steps", "2"]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    members = [build("cnn", 10, 1, 8, width=4) for _ in range(2)]
    return str(save_ensemble(RandomizedEnsemble(members, [0.6, 0.4]), tmp_path_factory.mktemp("cli") / "rec"))


def run(*arguments: object) -> int:
    return program.run([str(a) for a in arguments])


def test_evaluate_show_and_json(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    assert run("evaluate", ensemble, *QUICK, "--out", out, "--json") == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    told = json.loads(printed)
    assert 0 <= told["robust_accuracy"] <= told["clean_accuracy"] <= 1
    assert told["ball"]["eps"] == 0.1 and told["samples"] == 24 and len(told["members"]) == 2
    assert run("show", out, "--json", "--alpha", "1/2,1/2") == 0
    again = json.loads(capsys.readouterr().out)
    assert again.pop("rescored")["alpha"] == [0.5, 0.5]
    assert again == told
    assert run("show", out) == 0
    assert "robust accuracy" in capsys.readouterr().out
    assert run("evaluate", ensemble, *QUICK, "--out", out) == 0
    table = capsys.readouterr().out
    assert "member (from 0)" in table and [line.split()[1] for line in table.splitlines() if "0.6" in line][-1] == "0"
    assert "AdaptivePGD(steps=2" in table and "95" not in table.split("robust accuracy")[0]


def test_show_prints_what_was_warned_of(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    assert run("evaluate", ensemble, *QUICK, "--out", out, "--quiet") == 0
    told = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps({**told, "warnings": ["members[0] is not what it seems"]}))
    capsys.readouterr()
    assert run("show", out) == 0
    assert "warning: members[0] is not what it seems" in capsys.readouterr().out
    signals = [{"member": 0, "name": "gradients_disagree", "figure": 0.4}]
    (out / "summary.json").write_text(json.dumps({**told, "signals": signals}))
    assert run("show", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["signals"] == signals


def test_quiet_prints_nothing(ensemble: str, capsys: Any) -> None:
    assert run("evaluate", ensemble, *QUICK, "--quiet", "--limit", "120") == 0
    assert capsys.readouterr().out == ""


def test_records_that_are_not_kept_are_mentioned(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    assert run("evaluate", ensemble, *QUICK, "--json") == 0
    printed = capsys.readouterr()
    assert "records were not kept; --out DIR keeps them" in printed.err.splitlines()[-1]
    assert json.loads(printed.out)["samples"] == 24
    assert run("evaluate", ensemble, *QUICK, "--out", tmp_path / "run") == 0
    assert f"records in {tmp_path / 'run'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, words",
    [
        (["--eps", "8/0"], "eps is '8/0'"),
        (["--eps", "-1"], "eps"),
        (["--norm", "l0.5"], "norm 'l0.5'"),
        (["--attack", "adaptve_pgd"], "did you mean 'adaptive_pgd'"),
        (["--planes", "3"], "--planes does not apply"),
        (["--alpha", "0.5,0.6"], "alpha sums to 1.1"),
        (["--alpha", "1"], "alpha has 1 values for 2 members"),
        (["--data", "cifar11"], "cifar10"),
        (["--split", "tset"], "split"),
        (["--device", "gpu"], "device"),
        (["--precision", "float8"], "precision"),
        (["--batch-size", "many"], "batch-size"),
        (["--steps", "0"], "steps"),
        (["--knob", "steps=3"], "--steps and --knob steps=3 set the same knob"),
        (["--restarts", "0"], "--restarts is 0"),
        (["--limit", "0"], "limit"),
        (["--box", "1"], "box"),
        (["--eps", "1e308"], "eps is 1e+308; it must be"),
        (["--alpha", "0.5;0.5"], "--alpha is '0.5;0.5'; expected numbers or fractions with commas"),
        (["--knob", "random_init=no"], "--random-init is 'no'; expected true or false"),
        (["--knob", "seed=true"], "--seed is True; expected a whole number"),
        (["--attack", "pgd", "--knob", "member=a"], "--knob member is 'a'; expected a whole number"),
        (["--data", ""], "the name of the data set is empty"),
        (["--limit", "many"], "'--limit'"),
        (["--colour"], "no such option: --colour"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(ensemble: str, change: list[str], words: str, capsys: Any) -> None:
    assert run("evaluate", ensemble, *QUICK, *change) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("error: ")
    assert words in said.err


def test_commands_that_are_not_understood_get_one_line(capsys: Any) -> None:
    for words, told in (
        (["evaluate"], "error: missing argument 'ensemble'; see recarc evaluate --help\n"),
        (["evalute"], "error: no such command 'evalute'. Did you mean 'evaluate'? See recarc --help\n"),
        (["data", "gte"], "error: no such command 'gte'. Did you mean 'get'? See recarc data --help\n"),
    ):
        assert run(*words) == 2
        assert tuple(capsys.readouterr()) == ("", told)
    run()
    assert "evaluate" in "".join(capsys.readouterr())  # the help
    assert run("--version") == 0


def test_what_may_not_be_read_is_named(ensemble: str, monkeypatch: Any, capsys: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "data/test")

    monkeypatch.setattr("recarc.data.load", refuse)
    assert run("evaluate", ensemble, *QUICK) == 2
    assert capsys.readouterr().err == "error: data/test cannot be read or written: permission denied\n"


def test_a_file_that_is_no_data_set(ensemble: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").write_text("not images")
    assert run("evaluate", ensemble, *QUICK, "--data", "notes") == 2
    assert "'notes' is a file that cannot be read as images; expected a folder" in capsys.readouterr().err


def test_an_eps_of_another_scale_and_another_norm_than_the_members_were_trained_in(tmp_path: Path, capsys: Any) -> None:
    members = [build("cnn", 10, 1, 8, width=4) for _ in range(2)]
    folder = save_ensemble(RandomizedEnsemble(members), tmp_path / "rec", made_by={"norm": "l2"})
    assert run("evaluate", folder, *QUICK, "--norm", "l2") == 0
    assert "did you mean" not in capsys.readouterr().err
    assert run("evaluate", folder, *QUICK, "--eps", "8") == 2
    assert "eps 8 in linf is larger than the box [0, 1]: did you mean 8/255?" in capsys.readouterr().err
    assert run("evaluate", folder, *QUICK, "--eps", "0.6") == 0
    told = capsys.readouterr().err
    assert run("evaluate", folder, *QUICK, "--out", tmp_path / "run", "--json") == 0
    assert "trained in l2" in json.loads(capsys.readouterr().out)["warnings"][0]
    assert "warning: eps 0.6 in linf is large enough to turn any image uniform grey" in told
    assert "trained in l2 and are attacked in linf: did you mean l2?" in told


def test_apgd_is_asked_back(ensemble: str, capsys: Any) -> None:
    assert run("evaluate", ensemble, *QUICK, "--attack", "apgd") == 2
    assert "adaptive_pgd is the paper's, autopgd that of Croce and Hein" in capsys.readouterr().err


def test_a_folder_that_is_no_ensemble(tmp_path: Path, capsys: Any) -> None:
    assert run("evaluate", tmp_path, *QUICK) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run("show", tmp_path) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_classes_and_shapes_that_do_not_fit(tmp_path: Path, capsys: Any) -> None:
    few = save_ensemble(RandomizedEnsemble([build("cnn", 7, 1, 8, width=4)]), tmp_path / "few")
    large = save_ensemble(RandomizedEnsemble([build("cnn", 10, 3, 32, width=4)]), tmp_path / "large")
    for folder, words in ((few, "has 7 classes, digits has 10"), (large, "(B, 3, 32, 32)")):
        assert run("evaluate", folder, *QUICK) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_weights_of_another_architecture(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    other = save_ensemble(RandomizedEnsemble([build("linear", 10, 1, 8)]), tmp_path / "other")
    described = json.loads((other / "ensemble.json").read_text())
    described["members"][0]["architecture"] = "cnn"
    (other / "ensemble.json").write_text(json.dumps(described))
    assert run("evaluate", other, *QUICK) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_missing_options_and_unknown_commands() -> None:
    assert run("evaluate") == 2
    assert run("evalaute") == 2


def test_another_configuration_is_refused(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    assert run("evaluate", ensemble, *QUICK, "--quiet", "--out", tmp_path / "run") == 0
    assert run("evaluate", ensemble, *QUICK, "--steps", "3", "--out", tmp_path / "run") == 2
    assert "attack.steps is 2 in the run and 3 now" in capsys.readouterr().err


def test_tracebacks_only_when_asked_for(ensemble: str, monkeypatch: Any, capsys: Any) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("recarc.attacks.registry.import_module", broken)
    assert run("evaluate", ensemble, *QUICK) == 1
    line = broken.__code__.co_firstlineno + 1
    place = f"(test_command_line.py, line {line}; --verbose shows the way there)"
    assert capsys.readouterr().err == f"error: ZeroDivisionError: a mistake of ours {place}\n"
    assert run("evaluate", ensemble, *QUICK, "--verbose") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", names())
def test_every_attack_has_a_name_that_works(name: str, ensemble: str, capsys: Any) -> None:
    if name == "linear_arc":
        assert attack_named(name).rho == 0.05
        return
    cheap = {"tight": ["--preset", "quick"], "square": ["--knob", "queries=2"]}.get(name, ["--steps", "2"])
    arguments = ["--data", "digits", "--limit", "6", "--eps", "0.1", "--attack", name, *cheap, "--json"]
    assert run("evaluate", ensemble, *arguments) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 6


def test_restarts_start_at_random() -> None:
    attack = attack_named("adaptive_pgd", 3, steps=2, seed=5)
    assert attack.n == 3 and attack.attack.random_init and attack.attack.seed == 5
    with pytest.raises(InputError, match="deterministic"):
        attack_named("arc", 3)


def test_data_commands(capsys: Any) -> None:
    assert run("data", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["sets"]
    assert {"digits", "cifar10"} <= {row["name"] for row in rows}
    assert run("data", "check", "digits") == 0
    assert run("data", "get", "digits") == 0
    assert "digits test" in capsys.readouterr().out
    assert run("data", "get", "digts") == 2


def test_import_refuses_what_it_does_not_know(tmp_path: Path, capsys: Any) -> None:
    assert run("import", "dvrge", tmp_path / "x.pth", "--out", tmp_path / "rec") == 2
    assert "did you mean 'dverge'" in capsys.readouterr().err
    assert run("import", "dverge", tmp_path / "x.pth", "--out", tmp_path / "rec") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_numbers_as_people_type_them() -> None:
    assert number("eps", "8/255") == 8 / 255 and number("eps", " 0.5") == 0.5
    assert numbers("alpha", "1/3, 2/3") == [1 / 3, 2 / 3]
    for text in ("", "8/", "inf", "nan", "eight"):
        with pytest.raises(InputError, match="8/255"):
            number("eps", text)


def recarc(*arguments: object, module: bool = True, **settings: Any) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "recarc"] if module else [str(Path(sys.executable).parent / "recarc")]
    return subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True, timeout=300, **settings)


def test_both_ways_to_call_it_and_help_without_torch() -> None:
    for module in (True, False):
        assert recarc("--version", module=module).stdout.startswith("recarc ")
    script = (
        "import sys\nfrom recarc.cli.app import run\nassert run(['evaluate', '--help']) == 0\n"
        "assert not {'torch', 'pyarrow', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Example: recarc evaluate" in done.stdout


def test_python_m_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("typer", "torch", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')")
    done = subprocess.run([sys.executable, "-m", "recarc", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("recarc "), done.stderr


def test_names_cannot_write_to_the_terminal(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    name = "\x1b[2Jno\nerror: [bold]such[/] \u202eset"
    assert run("evaluate", ensemble, *QUICK[2:], "--data", tmp_path / name) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "\u202e" not in shown and shown.count("\n") == 1
    assert run("evaluate", ensemble, *QUICK, "--quiet", "--out", tmp_path / "run") == 0
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    saved["configuration"]["data"]["name"] = name
    del saved["checksum"]
    (tmp_path / "run" / "run.json").write_text(json.dumps({**saved, "checksum": fingerprint(saved)}))
    assert run("show", tmp_path / "run") == 0
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown and "\u202e" not in shown and "[bold]such[/]" in shown


def test_every_command_has_an_example() -> None:
    commands = [c for group in (program.app, program.data) for c in group.registered_commands]
    assert len(commands) >= 8
    for command in commands:
        if command.name != "train":
            assert command.callback is not None and "Example: `recarc" in str(command.callback.__doc__), command.name


def test_sigterm_leaves_a_run_that_goes_on(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    knobs = ["--data", "digits", "--limit", "100", "--eps", "0.1", "--attack", "arc", "--steps", "10"]
    knobs += ["--shard-size", "4", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "recarc", "evaluate", ensemble, *knobs, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "run").glob("[!.]*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    done = len(list((tmp_path / "run").glob("[!.]*.parquet")))
    assert 2 <= done < 25
    assert process.returncode == 3 and out == ""
    assert f"holds {done} of 25 shards; rerun the command to resume" in err and "Traceback" not in err
    assert run("show", tmp_path / "run") == 0
    capsys.readouterr()
    assert run(*command[3:]) == 0 and json.loads(capsys.readouterr().out)["complete"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kept", [True, False])
def test_a_signal_says_what_is_kept(
    number: int, kept: bool, ensemble: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    from recarc.evaluation import engine

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(engine, "notify", interrupted)  # after the run was announced
    before = signal.getsignal(signal.SIGTERM)
    assert run("evaluate", ensemble, *QUICK, "--quiet", *(["--out", tmp_path / "run"] if kept else [])) == 3
    line = f"{tmp_path / 'run'} holds 0 of 1 shards; rerun the command to resume" if kept else "nothing is kept"
    shown = capsys.readouterr().err
    assert f"interrupted; {line}" in shown and shown.count("interrupted") == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_is_one_line(ensemble: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that is full: the system refuses the write."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))\n"
        "from recarc.cli.app import run\n"
        "sys.exit(run(sys.argv[1:]))"
    )
    out = tmp_path / "run"
    done = run_python("-c", script, "evaluate", ensemble, *QUICK, "--limit", "200", "--out", out)
    assert done.returncode == 1
    assert "cannot write" in done.stderr and "rerun the command to resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(f.name for f in out.iterdir() if f.name != ".lock") == ["run.json", "summary.json"]


def test_the_ensemble_is_not_touched(ensemble: str, tmp_path: Path) -> None:
    before = {f.name: f.read_bytes() for f in Path(ensemble).iterdir()}
    assert run("evaluate", ensemble, *QUICK, "--quiet") == 0
    assert {f.name: f.read_bytes() for f in Path(ensemble).iterdir()} == before
    assert len(load_ensemble(ensemble)) == 2
