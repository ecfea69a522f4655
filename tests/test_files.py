"""Files and folders are whole or as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from recarc.atomic import replacing, write_bytes


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    with replacing(path) as part:
        part.write_text("1")
        assert part.suffix == ".json" and not path.exists()
    write_bytes(path, b"2")
    assert path.read_text() == "2" and [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "ensemble"
    for text in ("old", "new"):
        with replacing(path) as part:
            part.mkdir()
            (part / text).write_text(text)
    assert [p.name for p in path.iterdir()] == ["new"] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("folder", [False, True])
def test_after_an_error_nothing_has_changed(folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_bytes(path, b"kept")
    with pytest.raises(OSError, match="full"), replacing(path) as part:
        part.mkdir() if folder else part.write_text("half")
        raise OSError("full")
    assert path.read_text() == "kept" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_replaced_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    (path / "a").write_text("a")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == path and ".part" in self.name and not (self / "a").exists():
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"), replacing(path) as part:
        part.mkdir()
    assert [p.name for p in path.iterdir()] == ["a"] and list(tmp_path.iterdir()) == [path]
