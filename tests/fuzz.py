"""Mutated files for every reader: `make fuzz N=10000` prints what they did.

A reader may accept a mutated file or refuse it with an `InputError` or `RunError`. Anything else is a traceback;
starting a program or importing a module that the file names is an execution; more than 10 s is a hang. Each chunk of
files is read in a process of its own, so that a crash or an endless loop costs one file and memory is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "data"), str(HERE / "evaluation")]

import data_files as files  # noqa: E402
from runs import BALL, QUICK, problem  # noqa: E402

from recarc import Evaluation, RandomizedEnsemble, evaluate, load_ensemble, save_ensemble  # noqa: E402
from recarc.cli.output import print_evaluation, print_json, summary  # noqa: E402
from recarc.data import load  # noqa: E402
from recarc.errors import InputError, RunError  # noqa: E402
from recarc.evaluation.run_folder import RUN, RunFolder, _checksum  # noqa: E402
from recarc.models import build, import_checkpoint  # noqa: E402
from recarc.models.archive import add_archive  # noqa: E402
from recarc.report import build_report, load_runs, render  # noqa: E402
from recarc.training.checkpoint import CONFIG, SEAL, STATE, CheckpointFolder, sealed  # noqa: E402

SECONDS, CHUNK, SLICE, ALLOWED = 10, 50, 200, 2 * 2**30
CANARY = "recarc_fuzz_canary"  # a module and a program that a payload asks for
PAYLOADS = (
    b"cos\nsystem\n(S'" + CANARY.encode() + b"'\ntR.",
    b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c"
    + bytes([7 + len(CANARY)])
    + b"import "
    + CANARY.encode()
    + b"\x85R.",
    b"c" + CANARY.encode() + b"\nrun\n)R.",
)
ODD = (None, True, -1, 0, 2**31, 10**30, 1e308, 0.5, "", "\x1b[2J\n", "../../x", "9" * 5000, [], {}, [[]], {"a": {}})


class Hang(BaseException):
    pass


# What is read ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """Whole files of one kind, how they are read, and how a mutated one gets a checksum that is right."""

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    reseal: Callable[[Path, Path], object] = lambda folder, file: None


def pixels(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        return load(str(folder / name) if name == "images" else name, "test", data_dir=folder).batch([0, 1])

    return read


def arrays(name: str) -> Callable[[Path], object]:
    return lambda folder: load(folder / name, "test").batch([0, 1])


def idx(folder: Path, gz: bool = False) -> None:
    files.write_idx(folder, "t10k", *files.some_images(6, 1, 28), gz=gz)


def cifar(folder: Path, python2: bool = False) -> None:
    batch = (files.python2_batch if python2 else files.cifar_batch)(*files.some_images(4))
    (folder / "cifar-10-batches-py").mkdir()
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(batch)


def tar(folder: Path) -> None:
    batch = files.cifar_batch(*files.some_images(4))
    files.write_tar(folder / "cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": batch})


def small_rec() -> RandomizedEnsemble:
    torch.manual_seed(0)
    return RandomizedEnsemble([build("cnn", 10, 1, 8, width=2).eval() for _ in range(2)])


def checkpoint(folder: Path, zipped: bool = True) -> None:
    torch.manual_seed(0)
    members = {f"model_{i}": build("cnn", 10).state_dict() for i in range(2)}
    torch.save(members, folder / "members.pt", _use_new_zipfile_serialization=zipped)


def read_checkpoint(folder: Path) -> object:
    return import_checkpoint("plain", folder / "members.pt", folder / "out", normalisation="none")


def run_folder(folder: Path) -> None:
    ensemble, data = problem(12)
    evaluate(ensemble, QUICK, data, BALL, out=folder / "run", shard_size=4, save_inputs=True, progress=False)


def read_run(folder: Path) -> None:
    result = Evaluation.load(folder / "run", partial=True)
    with contextlib.redirect_stdout(io.StringIO()):
        print_evaluation(result)
        print_json(summary(result))
    result.to_csv(folder / "rows.csv")
    RunFolder.open(folder / "run").pending()
    render(build_report(load_runs([folder / "run"]), data=problem(12)[1]))


def reseal_run(folder: Path, file: Path) -> None:
    if file.name == RUN:
        run = json.loads(file.read_text())
        file.write_text(json.dumps({**run, "checksum": _checksum(run)}))
    elif file.suffix == ".parquet":
        side = file.with_suffix(".json")
        content = {**json.loads(side.read_text()), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        side.write_text(json.dumps(content))


def reseal_ensemble(folder: Path, file: Path) -> None:
    manifest = folder / "rec" / "ensemble.json"
    old = hashlib.sha256((ORIGINALS / "ensemble" / "rec" / file.name).read_bytes()).hexdigest()
    manifest.write_text(manifest.read_text().replace(old, hashlib.sha256(file.read_bytes()).hexdigest()))


def archive(folder: Path) -> None:
    source = save_ensemble(small_rec(), folder / "source")
    files.write_tar(folder / "rec.tgz", {f"rec/{path.name}": path.read_bytes() for path in source.iterdir()})
    shutil.rmtree(source)


def read_archive(folder: Path) -> object:
    return add_archive(folder / "rec.tgz")


def training(folder: Path) -> None:
    state = {"stages": [m.state_dict() for m in small_rec().members], "step": 3, "seed": 0}
    part = folder / "out.part"
    part.mkdir()
    (part / STATE).write_bytes(sealed(state))
    (part / CONFIG).write_text("{}")


def read_training(folder: Path) -> None:
    checkpoints = CheckpointFolder(folder / "out", {}, 5)
    try:
        checkpoints.open()
    finally:
        checkpoints.release()


def reseal_training(folder: Path, file: Path) -> None:
    body = file.read_bytes()[: -len(SEAL) - 32]
    file.write_bytes(body + SEAL + hashlib.sha256(body).digest())


SUBJECTS = (
    Subject("idx", idx, pixels("mnist")),
    Subject("idx.gz", lambda folder: idx(folder, gz=True), pixels("mnist")),
    Subject("CIFAR batch", cifar, pixels("cifar10")),
    Subject("CIFAR batch of Python 2", lambda folder: cifar(folder, python2=True), pixels("cifar10")),
    Subject("CIFAR .tar.gz", tar, pixels("cifar10")),
    Subject("mat", lambda f: files.write_mat(f / "test_32x32.mat", *files.some_images(4)), pixels("svhn")),
    Subject(
        "Parquet",
        lambda f: files.write_parquet(f / "cifar10/test.parquet", *files.some_images(6), names=list("abcdefghij")),
        pixels("cifar10"),
    ),
    Subject("npz", lambda f: files.write_arrays(f / "test.npz", *files.some_images(4)), arrays("test.npz")),
    Subject("tensors .pt", lambda f: files.write_arrays(f / "test.pt", *files.some_images(4)), arrays("test.pt")),
    Subject("images", lambda f: files.write_folder(f / "images/test", *files.some_images(4)), pixels("images")),
    Subject(
        "ensemble", lambda f: save_ensemble(small_rec(), f / "rec"), lambda f: load_ensemble(f / "rec"), reseal_ensemble
    ),
    Subject("archive of an ensemble", archive, read_archive),
    Subject("checkpoint .pt", checkpoint, read_checkpoint),
    Subject("checkpoint, old .pt", lambda folder: checkpoint(folder, zipped=False), read_checkpoint),
    Subject("run", run_folder, read_run, reseal_run),
    Subject("training checkpoint", training, read_training, reseal_training),
)
ORIGINALS = Path(tempfile.gettempdir())  # set by `originals`


@contextlib.contextmanager
def originals() -> Iterator[Path]:
    """A folder with whole files of every kind, each read once."""
    global ORIGINALS
    with tempfile.TemporaryDirectory(prefix="recarc-fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ORIGINALS = Path(folder)
        os.environ.pop("RECARC_DATA", None)
        for subject in SUBJECTS:
            (ORIGINALS / subject.name).mkdir()
            subject.make(ORIGINALS / subject.name)
            with copied(subject) as copy:
                subject.read(copy)
        yield ORIGINALS


@contextlib.contextmanager
def copied(subject: Subject) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir=ORIGINALS))
    os.environ["RECARC_CACHE"] = str(place / "cache")
    try:
        shutil.copytree(ORIGINALS / subject.name, place / "files")
        yield place / "files"
    finally:
        shutil.rmtree(place, ignore_errors=True)


# Mutations ------------------------------------------------------------------------------------------------


def mutate(file: Path, draw: random.Random) -> None:
    """Change a file: in its structure where it has one that we know, or else its bytes."""
    raw = file.read_bytes()
    if file.suffix == ".json" and draw.random() < 0.7:
        file.write_text(json.dumps(_odd_value(json.loads(raw), draw)))
    elif raw.startswith(b"PK") and draw.random() < 0.6:
        file.write_bytes(_mutated_archive(raw, draw))
    elif draw.random() < 0.1:
        file.write_bytes(draw.choice(PAYLOADS))
    else:
        file.write_bytes(_mutated_bytes(raw, draw))


def _mutated_bytes(raw: bytes, draw: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 2, 8))):
        early = draw.random() < 0.5  # where headers are
        at = draw.randrange(min(len(data), 200) if early else len(data)) if data else 0
        length = draw.choice((1, 2, 4, 8, 64))
        match draw.randrange(7):
            case 0:
                data[at : at + 1] = bytes([(data[at] if data else 0) ^ 1 << draw.randrange(8)])
            case 1:
                data[at : at + 4] = draw.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length] * draw.choice((1, 1000))
            case 5:
                data[at : at + length] = draw.randbytes(length)
            case 6:
                data[at:at] = draw.choice(PAYLOADS)
    return bytes(data)


def _mutated_archive(raw: bytes, draw: random.Random) -> bytes:
    """A zip file, as torch.save writes them, with one member changed and its checksum right."""
    sink = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(sink, "w") as new:
        names = old.namelist()
        chosen = draw.choice([name for name in names if draw.random() < 0.5 or name.endswith(".pkl")] or names)
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, _mutated_bytes(content, draw) if name == chosen else content)
    return sink.getvalue()


def _odd_value(content: Any, draw: random.Random) -> Any:
    """JSON with one value, somewhere, that nobody expects there."""
    if isinstance(content, dict | list) and content and draw.random() < 0.85:
        key = draw.choice(list(content)) if isinstance(content, dict) else draw.randrange(len(content))
        changed = {**content} if isinstance(content, dict) else [*content]
        if draw.random() < 0.15:
            del changed[key]
        else:
            changed[key] = _odd_value(content[key], draw)
        return changed
    return draw.choice(ODD)


# Reading them ---------------------------------------------------------------------------------------------


def attempt(subject: Subject, seed: int, executed: list[str]) -> tuple[str, str]:
    """What one mutated file does, and a note on it."""
    draw = random.Random(f"{subject.name} {seed}")
    with copied(subject) as folder:
        places = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        manifest = [path for path in places if path.suffix == ".json"] if draw.random() < 0.5 else []
        file = draw.choice(manifest or places)
        mutate(file, draw)
        if draw.random() < 0.7:
            with contextlib.suppress(Exception):  # what is no longer a file of its kind has no checksum to renew
                subject.reseal(folder, file)
        executed.clear()
        outcome, note = "accepted", ""
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            subject.read(folder)
        except (InputError, RunError):
            outcome = "refused"
        except Hang:
            outcome = "hang"
        except BaseException:
            outcome, note = "traceback", traceback.format_exc(limit=-4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return ("executed", str(executed[0])) if executed else (outcome, f"{file.name}: {note}" if note else "")


def chunk(subject: Subject, seeds: range, results: Any) -> None:
    """Read the mutated files of some seeds, in a process of its own."""
    executed: list[str] = []
    starts = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen"}

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in starts or (event in ("import", "exec") and CANARY in str(arguments[0])):
            executed.append(f"{event} {arguments}")

    def too_long(number: int, frame: object) -> None:
        raise Hang

    sys.addaudithook(watch)
    signal.signal(signal.SIGALRM, too_long)
    os.fsync = lambda _: None  # slow, and of no effect that a reader could see
    warnings.simplefilter("ignore")
    sys.stderr = io.StringIO()
    torch.set_num_threads(1)
    for seed in seeds:
        results.send((seed, *attempt(subject, seed, executed)))
    results.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def campaign(subject: Subject, seeds: range) -> tuple[Counter[str], int, list[str]]:
    """Outcomes, the largest memory in bytes, and a note on each outcome that must not be."""
    counts, largest, notes, left = Counter[str](), 0, [], seeds
    context = multiprocessing.get_context("fork")
    while left:
        part = left[:CHUNK]
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=chunk, args=(subject, part, sender))
        process.start()
        sender.close()
        left = left[len(part) :]
        seed = part.start
        while True:
            try:
                if not receiver.poll(3 * SECONDS):  # longer than the alarm: stuck outside Python
                    raise TimeoutError
                told = receiver.recv()
            except (EOFError, TimeoutError) as error:
                outcome = "hang" if isinstance(error, TimeoutError) else "crash"
                counts[outcome] += 1
                notes.append(f"{subject.name}, seed {seed}: {outcome}")
                left = range(seed + 1, seeds.stop)
                break
            if isinstance(told, int):
                largest = max(largest, told)
                break
            seed, outcome, note = told
            counts[outcome] += 1
            if outcome not in ("accepted", "refused"):
                notes.append(f"{subject.name}, seed {seed}: {outcome} {note}")
            seed += 1
        if process.is_alive():
            process.join(1)
            process.kill()
        process.join()
    return counts, largest, notes


def one_slice(number: int, seeds: range) -> tuple[Counter[str], int, list[str], float]:
    start = time.monotonic()
    return *campaign(SUBJECTS[number], seeds), time.monotonic() - start


def main(wanted: int, first: int = 0, jobs: int = 1) -> int:
    columns = ("accepted", "refused", "traceback", "executed", "hang", "crash")
    heads = ("tried", *columns, "largest MB", "s")
    print(f"{'':26}" + "".join(f"{head:>11}" for head in heads), flush=True)
    totals, largest, notes, begin = Counter[str](), 0, list[str](), time.monotonic()

    def line(name: str, counts: Counter[str], memory: int, seconds: float) -> None:
        cells = (sum(counts.values()), *(counts[c] for c in columns), memory // 10**6, round(seconds))
        print(f"{name:26}" + "".join(f"{cell:>11,}" for cell in cells), flush=True)

    with originals(), ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        slices: list[list[Any]] = []
        for k in range(len(SUBJECTS)):
            seeds = range(first, first + wanted // len(SUBJECTS) + (k < wanted % len(SUBJECTS)))
            slices.append([pool.submit(one_slice, k, seeds[i : i + SLICE]) for i in range(0, len(seeds), SLICE)])
        for subject, running in zip(SUBJECTS, slices):
            done = [part.result() for part in running]
            counts, memory = sum((d[0] for d in done), Counter[str]()), max((d[1] for d in done), default=0)
            line(subject.name, counts, memory, sum(d[3] for d in done))
            totals, largest, notes = totals + counts, max(largest, memory), notes + [n for d in done for n in d[2]]
    line("all", totals, largest, time.monotonic() - begin)
    print(*notes[:20], sep="\n")
    return int(bool(notes) or largest > ALLOWED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=int, nargs="?", default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    asked = parser.parse_args()
    sys.exit(main(asked.files, asked.first, asked.jobs))
