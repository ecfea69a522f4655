"""One command for every row of the board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paper import board_rows
from paper.board_rows import BOARD, ROWS, Source, commands, lacking, main, measure, named
from recarc import InputError, RandomizedEnsemble, Tight, load_ensemble, save_ensemble
from recarc.board import Board, entry
from recarc.board.names import alpha_name
from recarc.evaluation.fingerprint import module_hash
from recarc.models import build
from recarc.models.store import read_manifest

ROOT = Path(__file__).parents[2]


def test_every_row_of_the_board_is_that_of_its_ensemble() -> None:
    rows = {row.name: row for row in Board.read(BOARD).rows}
    assert set(rows) <= set(ROWS)
    hashes: dict[str, list[str]] = {}
    for name, source in ROWS.items():
        if name not in rows or source.ensemble == "dverge":  # which is not in the repository
            continue
        place = source.ensemble if source.ensemble.startswith("zoo:") else str(ROOT / source.ensemble)
        found = load_ensemble(place)
        if place not in hashes:
            hashes[place] = [module_hash(member) for member in found.members]
        size = source.members or len(found)
        assert rows[name].provenance["weights"] == hashes[place][:size]
        alpha = [float(a) for a in source.alpha.split(",")] if source.alpha else found.alpha.tolist()
        expected = [1 / size] * size if source.members else alpha
        assert np.allclose(rows[name].alpha, expected, atol=1e-4) and f"alpha {alpha_name(rows[name].alpha)}," in name
        assert rows[name].provenance.get("alpha_by") == (source.alpha_by or None)


def test_rows_are_named_by_how_they_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert named(["JAT"]) == [f"JAT, 0.5, linf, M = 2, alpha uniform, seed {seed}" for seed in (0, 10, 20)]
    assert [name[:8] for name in named(["AT, l2", "BAT, l2"])] == ["AT, l2, ", "BAT, l2,"] and named([]) == [*ROWS]
    with pytest.raises(InputError, match="unknown row of the board 'IAT, l3'"):
        named(["IAT, l3"])
    assert main(["IAT, l3"]) == 2 and capsys.readouterr().err.startswith("error: unknown row of the board 'IAT, l3'")
    assert main(["--help"]) == 0 and "How names of rows begin" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_the_first_members_of_a_folder_become_a_row_with_its_rivals(
    data_dir: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "Tight", lambda: Tight("quick", steps=4))
    monkeypatch.setenv("RECARC_DATA", str(data_dir))
    torch.manual_seed(0)
    whole = RandomizedEnsemble([build("mlp", 10, 3, 32, width=4) for _ in range(3)])
    made_by = {"method": "bat", "seed": 0, "seconds": 90.0, "members": 3, "curve": {}}
    given = save_ensemble(whole, tmp_path / "three", made_by=made_by)
    name, file = "BAT, linf, M = 2, alpha uniform, seed 0", Board(eps={"linf": 0.1}).write(tmp_path / "board.json")
    monkeypatch.setattr(board_rows, "ROWS", {name: Source(str(given), 2, 1 / 3)})
    assert measure([name], file, tmp_path / "runs", "cpu") == 0
    (row,) = Board.read(file).rows
    assert (row.name, row.minutes) == (name, 0.5) and row.provenance["seconds"] >= 0 and not lacking(row)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"ensemble", "drawn", "average", "vote"} == {path.name for path in folder.iterdir()}
    assert "curve" not in read_manifest(folder / "ensemble").made_by
    again = [*commands(name, board_rows.ROWS[name], file, tmp_path / "runs", "cpu")]
    assert [words[0] for words in again] == ["evaluate", "board"], "its rivals are on record"
    assert row.provenance["command"].startswith("recarc evaluate ") and "--attack tight" in row.provenance["command"]
    first = load_ensemble(folder / "ensemble")
    save_ensemble(RandomizedEnsemble(whole.members[1:]), given, made_by=made_by, overwrite=True)
    assert measure([name], file, tmp_path / "runs", "cpu") == 2, "a run of other members is not taken"
    assert module_hash(first.members[0]) != module_hash(load_ensemble(folder / "ensemble").members[0])
    assert "belongs to" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_a_row_that_fails_does_not_keep_the_others_back(
    data_dir: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "Tight", lambda: Tight("quick", steps=4))
    monkeypatch.setenv("RECARC_DATA", str(data_dir))
    made_by = {"method": "at", "seed": 0, "seconds": 1.0}
    given = save_ensemble(RandomizedEnsemble([build("mlp", 10, 3, 32, width=4)]), tmp_path / "one", made_by=made_by)
    missing, other, good = (f"{method}, linf, M = 1, alpha uniform, seed 0" for method in ("DVERGE", "IAT", "AT"))
    sources = {missing: Source(str(tmp_path / "nothing")), other: Source(str(given)), good: Source(str(given))}
    monkeypatch.setattr(board_rows, "ROWS", sources)
    file = Board(eps={"linf": 0.1}).write(tmp_path / "board.json")
    assert measure([*sources], file, tmp_path / "runs", "cpu") == 2
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if "not measured" in line] == [
        f"{missing}: not measured",
        f"{other}: not measured",
    ]
    assert f"became another row than {other}: correct its entry" in said
    assert [row.name for row in Board.read(file).rows] == [good]
