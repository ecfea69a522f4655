"""Properties of every reader and writer, tried on values that Hypothesis makes up; `make fuzz` tries many more.

What is written is read back equal, names come through as text and never as markup, and a reader given anything at all
accepts it or refuses it in a line.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import fuzz
from paper import results
from recarc import RandomizedEnsemble, atomic, load_ensemble, save_ensemble
from recarc.board.boards import Board
from recarc.board.page import write_board
from recarc.board.rows import Row
from recarc.cli import options
from recarc.cli.output import print_evaluation
from recarc.data import load
from recarc.errors import InputError, RunError, printable, spreadsheet_cell
from recarc.evaluation import Evaluation
from recarc.evaluation.masking import Signal
from recarc.evaluation.records import Records, from_parquet, joined, taken, to_parquet
from recarc.evaluation.result import columns
from recarc.evaluation.run_folder import RunFolder, locked
from recarc.models import build
from recarc.models.store import read_manifest
from recarc.report import build_report, load_runs, render
from recarc.report.writing import Table
from recarc.training.checkpoint import CheckpointFolder, sealed

files = fuzz.files
WANTED = int(os.environ.get("RECARC_FUZZ", "0"))  # set by `make fuzz`


def tried(examples: int) -> Callable[[Any], Any]:
    """The same examples in every run of the suite; for `make fuzz` more, and others with every seed."""
    return settings(
        max_examples=examples * max(1, WANTED // 100),
        deadline=None,
        derandomize=not WANTED,
        database=None,
        phases=[Phase.generate, Phase.shrink] if WANTED else [Phase.generate],  # to shrink a failure takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(scope="module", autouse=True)
def originals() -> Iterator[Path]:
    """Whole files of every kind; the environment and the disk are left alone."""
    with pytest.MonkeyPatch.context() as patch, fuzz.originals() as folder:
        patch.setattr(os, "fsync", lambda _: None)  # slow, and of no effect that a test could see
        for name in ("RECARC_CACHE", "RECARC_DATA"):
            patch.setenv(name, "")
        (folder / "cache").mkdir()
        os.environ["RECARC_CACHE"] = str(folder / "cache")
        del os.environ["RECARC_DATA"]
        yield folder


@pytest.fixture
def folder(originals: Path) -> Callable[[], Any]:
    """A new folder for every example."""
    return partial(tempfile.TemporaryDirectory, dir=originals)


# Values ---------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=12)  # lone surrogates too: JSON can hold them
NAMES = TEXT | st.sampled_from(
    ["<script>x</script>", '" onload="x', "=1+1", "[x](y)", "\x1b[2J", "\n% \\input{x}", "[1ex]", "*", "\u202e", "＝1"]
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SHARES = st.floats(0, 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ANY_JSON = (
    JSON
    | st.sampled_from([math.nan, math.inf, -math.inf, 10**400, -(10**400), 2**63, 1e308, "9" * 5000, [[]] * 50])
    | st.lists(st.integers(-1, 10**20) | st.floats(), max_size=4)
)
STATE = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT
    | arrays.arrays(st.sampled_from([np.float32, np.float64, np.int64, np.uint8]), arrays.array_shapes(min_side=0))
    .map(torch.from_numpy),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def simplex(draw: st.DrawFn, count: int) -> list[float]:
    parts = [draw(st.integers(0, 9)) for _ in range(count - 1)] + [draw(st.integers(1, 9))]
    return [part / sum(parts) for part in parts]


@st.composite
def records(draw: st.DrawFn, names: st.SearchStrategy[str] = TEXT, n: int | None = None) -> Records:
    members, components = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    n = n or draw(st.integers(1, 4))

    def some(dtype: Any, *shape: int, **more: Any) -> np.ndarray:
        return draw(arrays.arrays(dtype, (*shape, n), **more))

    utf8 = names.map(lambda name: name.encode(errors="replace").decode())
    stages = draw(st.lists(utf8, max_size=3, unique=True))
    return Records(
        index=np.arange(n),
        labels=some(np.int16),
        clean=some(np.int16, members),
        adversarial=some(np.int16, components, members),
        norms=some(np.float32, components),
        weights=np.array(draw(simplex(components))),
        stages={name: some(np.int16, members) for name in stages},
        alone=draw(st.none() | st.builds(partial(some, np.bool_, members))),
        decided_by=draw(st.none() | st.builds(partial(some, np.int16, elements=st.integers(-1, len(stages) - 1)))),
        challenged=draw(st.none() | st.builds(partial(some, np.int8, members, elements=st.integers(0, 2)))),
        excluded=draw(st.none() | st.builds(partial(some, np.bool_, draw(st.integers(0, 3))))),
    )


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, with the same types."""
    if isinstance(one, (np.ndarray, torch.Tensor)):
        one, other = np.asarray(one), np.asarray(other)
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


# What is written is read back -----------------------------------------------------------------------------


@given(records(), st.integers(1, 4))
@tried(25)
def test_records(written: Records, size: int) -> None:
    data = to_parquet(written)
    assert same(vars(from_parquet(data)), vars(written)) and to_parquet(from_parquet(data)) == data
    assert from_parquet(data).norms.flags.c_contiguous and from_parquet(data).adversarial.flags.c_contiguous
    n = len(written)
    parts = [taken(written, range(k, min(n, k + size))) for k in range(0, n, size)]
    assert same(vars(joined([from_parquet(to_parquet(part)) for part in parts])), vars(written))


def evaluation(made: Records, alpha: list[float], attack: Any, name: str, size: int = 2) -> Evaluation:
    data = {"name": name, "split": name, "samples": len(made), "fingerprint": name}
    ball = {"norm": "linf", "eps": 0.1, "box": [0.0, 1.0]}
    config = {"attack": attack, "ball": ball, "alpha": alpha, "data": data, "shard_size": size, "device": name}
    return Evaluation(made, np.array(alpha), config, 1.5, 7, 3, len(made), warnings=[name])


@st.composite
def evaluations(draw: st.DrawFn, names: st.SearchStrategy[str] = TEXT) -> Evaluation:
    made, name = draw(records(names)), draw(names)
    made.norms = np.minimum(np.abs(np.nan_to_num(made.norms)), np.float32(1e3))  # an attack has no others
    attack = {"class": draw(names), "preset": draw(names), **draw(st.dictionaries(names, JSON, max_size=2))}
    attack = {key: value for key, value in attack.items() if key not in ("challenge", "attack", "attacks")}
    made = evaluation(made, draw(simplex(len(made.clean))), attack, name, draw(st.integers(1, 5)))
    return replace(made, signals=[Signal(0, draw(names), draw(SHARES))])


@given(made=evaluations(), environment=st.dictionaries(TEXT, JSON, max_size=3))
@tried(15)
def test_run_folders(made: Evaluation, environment: Any, folder: Any) -> None:
    with folder() as place:
        read = Evaluation.load(made.save(f"{place}/run"))
        assert same(vars(read.records), vars(made.records)) and read.signals == made.signals
        assert same(read.configuration, {**made.configuration, "save_inputs": False})
        assert canonical(read.to_json()) == canonical(made.to_json())
        with locked(f"{place}/other"):
            run = RunFolder.create(f"{place}/other", made.configuration, environment, [["x"], None])
        again = RunFolder.open(run.path)
        assert same(again.run, run.run) and again.environment == environment and again.first_logits == [["x"], None]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(made=evaluations(NAMES))
@tried(15)
def test_csv(made: Evaluation, folder: Any) -> None:
    with folder() as place:
        text = made.to_csv(f"{place}/rows.csv").read_bytes().decode()
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    table = columns(made)
    assert head == list(table) and len(rows) == len(made)
    for name, cells in zip(head, zip(*rows)):
        for cell, value in zip(cells, table[name].tolist()):
            if isinstance(value, float):
                assert same(float(cell), value)
            else:
                assert cell == ("" if value is None else str(spreadsheet_cell(value)))


@given(st.data())
@tried(15)
def test_ensembles(folder: Any, data: st.DataObject) -> None:
    draw, members = data.draw, []
    classes, channels, size = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    for _ in range(draw(st.integers(1, 3))):
        arch = draw(st.sampled_from(["linear", "mlp", "cnn"]))
        small = st.integers(1, 3)
        knobs = {
            "linear": {},
            "mlp": {"width": small, "depth": small},
            "cnn": {"width": small, "batch_norm": st.booleans()},
        }
        per_channel = partial(st.lists, min_size=channels, max_size=channels)
        mean, std = draw(st.none() | st.tuples(per_channel(st.floats(-3, 3)), per_channel(st.floats(0.01, 3)))) or (
            None,
            None,
        )
        model = build(arch, classes, channels, size, mean, std, **{k: draw(v) for k, v in knobs[arch].items()})
        members.append(model.to(draw(st.sampled_from([torch.float32, torch.float64, torch.float16]))).eval())
    alpha, made_by = draw(simplex(len(members))), draw(st.dictionaries(TEXT, JSON, max_size=3))
    rec = RandomizedEnsemble(members, alpha)
    with folder() as place:
        saved = save_ensemble(rec, f"{place}/rec", made_by=made_by)
        manifest, read = read_manifest(saved), load_ensemble(saved)
    assert (
        same(manifest.made_by, made_by) and same(read.alpha, rec.alpha) and list(manifest.alpha) == rec.alpha.tolist()
    )
    for one, other in zip(members, read.members):
        assert same(dict(one.state_dict()), dict(other.state_dict())) and other.spec == one.spec and not other.training


@given(STATE, STATE, st.integers(0, 10**6), st.dictionaries(TEXT, JSON, max_size=3))
@tried(20)
def test_training_checkpoints(folder: Any, first: Any, second: Any, step: int, config: dict[str, Any]) -> None:
    with folder() as place:

        def opened() -> tuple[Any, str]:
            checkpoints = CheckpointFolder(Path(place, "out"), config, 5)
            state = checkpoints.open()
            checkpoints.release()
            return state, checkpoints.note

        assert opened() == (None, "")
        checkpoints = CheckpointFolder(Path(place, "out"), config, 5)
        states = [{"stages": stages, "step": step + k} for k, stages in enumerate((first, second))]
        for state in states:
            checkpoints.save(state, state["step"])
        assert same(opened(), (states[1], ""))
        newest = Path(place, "out.part", "checkpoint.pt")
        newest.write_bytes(newest.read_bytes()[:-1])
        state, note = opened()
        assert same(state, states[0]) and note


@st.composite
def rows(draw: st.DrawFn, names: st.SearchStrategy[str] = TEXT) -> Row:
    interval = st.fixed_dictionaries(dict.fromkeys(("value", "low", "high"), SHARES))
    given = st.builds(
        Row,
        method=names,
        norm=names,
        eps=SHARES,
        members=st.just(1),  # as many as alpha has, below
        alpha=simplex(draw(st.integers(1, 3))),
        samples=st.integers(1, 10**6),
        **dict.fromkeys(("clean", "adaptive_pgd", "arc", "floor", "best_member", "most"), SHARES),
        tight=interval,
        verdict=names,
        gain=interval,
        gain_at_floor=SHARES,
        average=st.none() | SHARES,
        joint=st.none() | SHARES,
        signals=st.lists(names, max_size=2),
        flops=st.none() | st.floats(0, 1e15),
        minutes=st.none() | st.floats(0, 1e9),
        provenance=st.fixed_dictionaries(
            {}, optional={"seed": st.integers(), "hardware": names, "commit": names, "command": names}
        ),
    )
    row = draw(given)
    gain = row.gain | {"value": row.tight["value"] - row.best_member}
    return replace(row, method=row.method or "m", members=len(row.alpha), gain=gain)


@st.composite
def boards(draw: st.DrawFn, names: st.SearchStrategy[str] = TEXT) -> Board:
    board = Board(draw(names), draw(names), draw(st.dictionaries(names, SHARES, max_size=2)))
    found = {row.name: row for row in draw(st.lists(rows(names), max_size=2))}
    return replace(board, rows=tuple(found.values()))


@given(boards())
@tried(15)
def test_boards(folder: Any, board: Board) -> None:
    with folder() as place:
        assert Board.read(board.write(Path(place, "board.json"))) == board


FIGURES = st.builds(
    results.Figure,
    column=TEXT,
    measured=FINITE,
    interval=st.none() | st.tuples(FINITE, FINITE),
    paper=st.none() | FINITE,
    x=st.none() | FINITE,
    unit=TEXT,
    extra=st.booleans(),
)
RESULTS = st.builds(
    results.RowResult,
    row=TEXT,
    figures=st.lists(FIGURES, max_size=2).map(tuple),
    images=st.integers(0, 10**6),
    alpha=st.none() | st.lists(SHARES, max_size=3).map(tuple),
    attacks=st.dictionaries(TEXT, TEXT, max_size=2),
    seconds=FINITE,
    commit=st.none() | TEXT,
    note=TEXT,
    stale=st.dictionaries(TEXT, TEXT, max_size=2),
)


@given(TEXT, st.lists(RESULTS, max_size=2).map(tuple))
@tried(20)
def test_results_of_the_paper(folder: Any, title: str, rows: tuple[results.RowResult, ...]) -> None:
    with folder() as place:
        result = results.ItemResult("item", title, rows)
        results.write(Path(place), result)
        assert results.read(Path(place), "item") == result


@st.composite
def images(draw: st.DrawFn, channels: int | None = None, size: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    channels, side = channels or draw(st.sampled_from([1, 3])), st.integers(4, 9)
    height, width = (size, size) if size else (draw(side), draw(side))
    labels = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    seed, fill = draw(st.integers(0, 2**32 - 1)), draw(st.none() | st.integers(0, 255))
    shape = (len(labels), channels, height, width)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return pixels if fill is None else np.full(shape, fill, np.uint8), np.array(labels)


def batch(place: Path, raw: bytes) -> None:
    (place / "cifar-10-batches-py").mkdir()
    (place / "cifar-10-batches-py" / "test_batch").write_bytes(raw)


FORMATS: dict[str, tuple[str, tuple[int | None, ...], Callable[[Path, Any, Any], object]]] = {
    "idx": ("mnist", (1, 28), lambda place, x, y: files.write_idx(place, "t10k", x, y)),
    "idx.gz": ("mnist", (1, 28), lambda place, x, y: files.write_idx(place, "t10k", x, y, gz=True)),
    "batch": ("cifar10", (3, 32), lambda place, x, y: batch(place, files.cifar_batch(x, y))),
    "batch of Python 2": ("cifar10", (3, 32), lambda place, x, y: batch(place, files.python2_batch(x, y))),
    "tar": (
        "cifar10",
        (3, 32),
        lambda place, x, y: files.write_tar(
            place / "cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": files.cifar_batch(x, y)}
        ),
    ),
    "mat": ("svhn", (3, 32), lambda place, x, y: files.write_mat(place / "test_32x32.mat", x, y)),
    "Parquet": ("cifar10", (3, 32), lambda place, x, y: files.write_parquet(place / "test.parquet", x, y, group=2)),
    "own Parquet": ("own/test.parquet", (), lambda place, x, y: files.write_parquet(place / "own/test.parquet", x, y)),
    "npz": ("test.npz", (), lambda place, x, y: files.write_arrays(place / "test.npz", x, y)),
    "pt": ("test.pt", (), lambda place, x, y: files.write_arrays(place / "test.pt", x, y)),
}


@pytest.mark.parametrize("name", FORMATS)
@given(st.data())
@tried(8)
def test_data(folder: Any, name: str, data: st.DataObject) -> None:
    source, shape, write = FORMATS[name]
    pixels, labels = data.draw(images(*shape))
    with folder() as place:
        write(Path(place), pixels, labels)
        got = load(f"{place}/{source}") if "." in source else load(source, data_dir=place)
        assert same(np.asarray(got.images[:]), pixels) and np.array_equal(got.labels, labels)


@given(images(), st.text(st.characters(exclude_characters="/\0.", exclude_categories=["Cs"]), min_size=1, max_size=9))
@tried(12)
def test_folders_of_images(folder: Any, made: Any, name: str) -> None:
    """Classes are in the order of their names, and images in that of theirs."""
    pixels, labels = made
    with folder() as place:
        files.write_folder(Path(place, "test"), pixels, labels, names=[f"{k}{name}" for k in range(10)])
        got = load(f"{place}/")
        order = np.argsort(labels, kind="stable")
        assert [got.classes[k] for k in got.labels] == [f"{k}{name}" for k in labels[order]]
        assert np.array_equal(np.asarray(got.batch(range(len(labels)))[0] * 255).round(), pixels[order])


@given(
    st.sampled_from(["npz", "pt"]),
    arrays.arrays(st.sampled_from("?bBhHiIlLefd"), arrays.array_shapes(min_dims=0, max_dims=5, max_side=4, min_side=0)),
    arrays.arrays(st.sampled_from("?bBhilLefd"), arrays.array_shapes(min_dims=0, max_dims=2, min_side=0)),
)
@tried(60)
def test_arrays_of_any_kind(folder: Any, suffix: str, x: np.ndarray, y: np.ndarray) -> None:
    with folder() as place, contextlib.suppress(InputError):
        path = files.write_arrays(Path(place, f"test.{suffix}"), x, y)
        got = load(path)
        assert np.array_equal(got.labels, y) and got.images.dtype == np.uint8 and got.images[:].size == x.size


@given(st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=20), min_size=1), st.integers(0, 8), st.booleans())
@tried(40)
def test_all_files_or_none(folder: Any, contents: dict[str, bytes], full_at: int, in_the_way: bool) -> None:
    """Written together: neither a full disk nor a folder in the place of a file leaves some of them new."""
    with folder() as place, pytest.MonkeyPatch.context() as patch:
        targets = {Path(place, name): data for name, data in contents.items()}
        for path in targets:
            path.write_bytes(b"old " + path.name.encode())
        if in_the_way:
            path.unlink()
            path.mkdir()
        before = {path: path.is_file() and path.read_bytes() for path in targets}
        count, write = iter(range(99)), atomic.write_through

        def writing(path: Path, data: bytes) -> None:
            if next(count) == full_at:
                path.write_bytes(data[: len(data) // 2])
                raise OSError(28, "No space left on device")
            write(path, data)

        patch.setattr(atomic, "write_through", writing)
        try:
            atomic.write_all(targets)
            expected: dict[Path, Any] = dict(targets)
            assert full_at >= len(targets) and not in_the_way
        except OSError:
            expected = before
        assert {path: path.is_file() and path.read_bytes() for path in targets} == expected
        assert {path.name for path in Path(place).iterdir()} == set(contents)


# Names are text -------------------------------------------------------------------------------------------


@given(NAMES)
@tried(200)
def test_lines_and_cells(name: str) -> None:
    line = printable(name)
    assert line.isprintable() and printable(line) == line and (line == name or not name.isprintable())
    cell = str(spreadsheet_cell(name))
    assert cell.isprintable() and not cell.lstrip().startswith(tuple("=+-@＝＋－＠"))


@given(st.lists(st.lists(NAMES, min_size=2, max_size=2), min_size=1, max_size=3), NAMES)
@tried(100)
def test_tables(cells: list[list[str]], caption: str) -> None:
    table = Table("name", caption, cells[0], cells[1:])
    latex = table.latex().splitlines()
    assert len(latex) == 6 + len(cells) and latex[0] == f"% {printable(caption)}"
    for row in (latex[3], *latex[5:-2]):
        plain = row.removesuffix(r" \\")
        plain = re.sub(r"\\text(backslash|asciitilde|asciicircum|less|greater)\{\}|\\[&%$#_{}]", "", plain)
        plain = plain.removeprefix("{}")
        assert plain.count("&") == 1 and not set(plain) & set("\\%$#_{}~^<>")
        assert not row.startswith(("[", "*"))  # which the end of the row before would take for its own
    markdown = table.markdown().split("\n")
    assert len(markdown) == 4 + len(cells)
    for line in markdown[2:3] + markdown[4:-1]:
        plain = line.replace("\\\\", "").replace("\\|", "").replace("\\[", "").replace("\\`", "")
        assert plain.count("|") == 3 and not set(plain) & set("<[`\\")


class Skeleton(HTMLParser):
    """The tags of a page with their attributes' names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.parts: set[str] = set()
        self.scripts = 0
        self.feed(page)
        assert not re.search(r"[^\n\t -\x7e\xa0-\u200a\u2010-\u2027\u202f-\u205f\u2070-\ud7ff\ue000-\U0010ffff]", page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.parts |= {tag, *(f"{tag} {name}" for name, _ in attrs)}


def board_page(folder: Any, board: Board) -> Skeleton:
    with folder() as place:
        return Skeleton(write_board(board, f"{place}/board.html").read_text(encoding="utf-8"))


@given(boards(NAMES), rows(NAMES))
@tried(8)
def test_the_page_of_a_board(folder: Any, board: Board, row: Row) -> None:
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    plain = replace(row, method="x", norm="x", verdict="x", flops=1.0, minutes=1.0, signals=["x"], joint=0.1)
    plain = replace(plain, provenance=dict.fromkeys(("hardware", "command"), "x"), members=2, alpha=[0.5, 0.5])
    far = replace(plain, signals=[], average=0.1, tight=figure, gain=figure)
    near = replace(far, gain={"value": 0.0, "low": 0.0, "high": 0.0})
    whole = Board(eps={"x": 1.0}, rows=(plain, replace(far, method="y"), replace(near, method="z")))
    expected, found = board_page(folder, whole), board_page(folder, replace(board, rows=(*board.rows, row)))
    assert found.parts <= expected.parts and found.scripts == expected.scripts


@given(evaluations(NAMES))
@tried(6)
def test_the_report_and_the_terminal(folder: Any, made: Evaluation) -> None:
    plain = evaluation(made.records, made.alpha.tolist(), {"class": "x", "preset": "x", "y": [1]}, "x")
    pages = []
    for result in (made, plain):
        with folder() as place, contextlib.redirect_stdout(io.StringIO()) as out:
            pages.append(Skeleton(render(build_report(load_runs([result.save(f"{place}/run")])))))
            print_evaluation(result)
        assert all(character.isprintable() or character == "\n" for character in out.getvalue())
    assert pages[0].parts <= pages[1].parts and pages[0].scripts == pages[1].scripts


# What people type -----------------------------------------------------------------------------------------


@given(FINITE, FINITE.filter(bool), st.lists(FINITE, min_size=1), st.integers())
@tried(100)
def test_numbers_are_read(one: float, other: float, several: list[float], count: int) -> None:
    assert options.number("--eps", f"{one!r}") == one
    assert options.numbers("--alpha", ", ".join(map(repr, several))) == several
    assert options.size("--batch", str(count)) == count
    if math.isfinite(one / other):
        assert options.number("--eps", f"{one!r}/{other!r}") == one / other


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), JSON, max_size=3))
@tried(60)
def test_assignments_are_read(values: dict[str, Any]) -> None:
    texts = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    assert same(options.assignments("--set", "KEY=VALUE", texts), values)


@given(TEXT | st.text("0123456789eE+-./,_ []{}=nainf", max_size=12) | st.sampled_from(["9" * 5000, "a=" + "[" * 10**5]))
@tried(200)
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    for read in (options.number, options.numbers, options.size):
        with contextlib.suppress(InputError):
            found = read("--option", text)
            assert found == "auto" or np.isfinite(np.array(found, dtype=float)).all() or read is options.size
    for read_text in (options.box, lambda text: options.assignments("--set", "KEY=VALUE", [text])):
        with contextlib.suppress(InputError):
            read_text(text)


@given(ANY_JSON | st.lists(FINITE, max_size=3), st.integers(1, 3))
@tried(100)
def test_alpha_is_a_distribution_or_refused(alpha: Any, count: int) -> None:
    with contextlib.suppress(InputError):
        found = RandomizedEnsemble([torch.nn.Identity()] * count, alpha).alpha
        assert len(found) == count and bool((found >= 0).all()) and abs(float(found.sum()) - 1) < 1e-9


# Anything at all is read or refused -----------------------------------------------------------------------


def read_board(place: Path) -> None:
    write_board(Board.read(place / "board.json"), place / "board.html")


def a_board(place: Path) -> None:
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = Row("m", "linf", 0.1, 2, [0.5, 0.5], 9, 1, 0.6, 0.6, figure, 0.5, "open", 0.4, figure, 0.1, 0.2)
    Board(rows=(row,)).write(place / "board.json")


def some_results(place: Path) -> None:
    row = results.RowResult("row", (results.Figure("tight", 1.0, (0.5, 1.5), x=1.0),), 9, alpha=(0.5, 0.5))
    results.write(place, results.ItemResult("item", "title", (row,)))


SUBJECTS = (
    *fuzz.SUBJECTS,
    fuzz.Subject("board", a_board, read_board),
    fuzz.Subject("results", some_results, lambda place: results.read(place, "item")),
)
NESTED = b"[" * 10**5


def read_or_refused(subject: fuzz.Subject, place: Path) -> None:
    with warnings.catch_warnings(), contextlib.suppress(InputError, RunError):
        warnings.simplefilter("ignore")
        subject.read(place)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@given(st.data())
@tried(10)
def test_anything_is_read_or_refused(subject: fuzz.Subject, originals: Path, data: st.DataObject) -> None:
    if not (originals / subject.name).exists():
        (originals / subject.name).mkdir()
        subject.make(originals / subject.name)
    with fuzz.copied(subject) as place:
        present = sorted(path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
        file = data.draw(st.sampled_from(present))
        raw = file.read_bytes()
        if file.suffix == ".json" and data.draw(st.integers(0, 4)):
            file.write_text(json.dumps(data.draw(changed(json.loads(raw)))))
        else:
            start = raw[: data.draw(st.sampled_from([0, 4, 8, 64, len(raw) // 2]))]
            file.write_bytes(start + data.draw(st.binary(max_size=100) | st.just(NESTED)))
        if data.draw(st.booleans()):
            with contextlib.suppress(Exception):  # what is no longer a file of its kind has no checksum to renew
                subject.reseal(place, file)
        read_or_refused(subject, place)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """The document with another value somewhere."""
    if isinstance(document, (dict, list)) and document and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(document) if isinstance(document, dict) else range(len(document))))
        copy = document.copy()
        copy[key] = draw(changed(document[key]))
        return copy
    return draw(ANY_JSON)


@given(ANY_JSON, st.dictionaries(st.sampled_from(["index", "label", "clean", "weight", "norm"]), ANY_JSON))
@tried(40)
def test_a_table_of_any_kind_is_no_shard(layout: Any, cells: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(to_parquet(fuzz_records())))
    for name, cell in cells.items():
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeError):
            table = table.set_column(table.column_names.index(name), name, pa.array([cell] * len(table)))
    layout = layout if cells else {"members": layout, "components": 1}
    sink = io.BytesIO()
    with contextlib.suppress(pa.ArrowException):
        pq.write_table(table.replace_schema_metadata({"recarc": json.dumps(layout)}), sink)
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from_parquet(sink.getvalue())


def fuzz_records() -> Records:
    bits = np.zeros((1, 2, 3), np.int16)
    return Records(np.arange(3), bits[0, 0], bits[0], bits, np.zeros((1, 3), np.float32), np.ones(1))


@given(STATE)
@tried(20)
def test_a_sealed_state_of_any_kind_is_read_or_refused(folder: Any, state: Any) -> None:
    with folder() as place, contextlib.suppress(InputError):
        Path(place, "out.part").mkdir()
        Path(place, "out.part", "checkpoint.pt").write_bytes(sealed(state))
        Path(place, "out.part", "training.json").write_text("{}")
        fuzz.read_training(Path(place))
