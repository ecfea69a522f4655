"""Files and folders are complete or unchanged; locks exclude other processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import warnings
from pathlib import Path

import pytest

from recarc import atomic
from recarc.atomic import Lock, replacing, sweep, sweep_beside, write_all, write_bytes
from recarc.errors import InputError, RecarcWarning


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    with replacing(path) as part:
        part.write_text("1")
        assert part.suffix == ".json" and not path.exists()
    write_bytes(path, b"2")
    assert path.read_text() == "2" and names(path.parent) == ["a.json"]


def test_a_folder_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "ensemble"
    for text in ("old", "new"):
        with replacing(path) as part:
            part.mkdir()
            (part / text).write_text(text)
    assert names(path) == ["new"] and names(tmp_path) == ["ensemble"]


@pytest.mark.parametrize("folder", [False, True])
def test_after_an_error_nothing_has_changed(folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_bytes(path, b"kept")
    with pytest.raises(OSError, match="full"), replacing(path) as part:
        part.mkdir() if folder else part.write_text("half")
        raise OSError("full")
    assert path.read_text() == "kept" and names(tmp_path) == ["kept"]


def test_a_folder_that_cannot_be_replaced_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert names(path) == ["a"] and names(tmp_path) == ["kept"]


def test_several_files_are_written_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {tmp_path / "a": b"new a", tmp_path / "sub" / "b": b"new b"}
    write_bytes(tmp_path / "a", b"old a")
    write, written = atomic.write_through, []

    def full_after_one(path: Path, data: bytes) -> None:
        write(path, data)
        written.append(path)
        if len(written) == 2:
            raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_through", full_after_one)
        with pytest.raises(OSError, match="full"):
            write_all(files)
    assert len(written) == 2 and (tmp_path / "a").read_bytes() == b"old a"
    assert names(tmp_path) == ["a", "sub"] and names(tmp_path / "sub") == []
    write_all(files)
    assert {path: path.read_bytes() for path in files} == files and names(tmp_path / "sub") == ["b"]


def test_leftovers_of_one_folder_are_swept_and_nothing_else(tmp_path: Path) -> None:
    """A kill while a training run wrote its ensemble left the half-written folder beside it, for ever."""
    for name in ("rec", "rec.other", "other", "rec.json"):
        with replacing(tmp_path / name) as part:
            part.mkdir()
        (tmp_path / name).rename(part)
    (tmp_path / ".rec.part").mkdir()
    sweep_beside(tmp_path / "rec")
    left = names(tmp_path)
    assert len(left) == 4 and not any(re.fullmatch(r"\.rec\.[0-9a-f]{16}\.part", name) for name in left)


def test_leftovers_are_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in ("kept.json", ".hidden", "a.part"):
        (tmp_path / name).write_text("not a temporary name of this module")
    with replacing(tmp_path / "file.json") as file, replacing(tmp_path / "folder") as folder:
        file.write_text("")
        folder.mkdir()
    (tmp_path / "file.json").rename(file)  # as if the process had been killed before its last step
    (tmp_path / "folder").rename(folder)
    sweep(tmp_path, older_than=60)
    assert file.exists() and folder.exists()  # perhaps another process is still writing them
    for path in (file, folder):
        os.utime(path, (1, 1))
    sweep(tmp_path, older_than=60)
    assert names(tmp_path) == [".hidden", "a.part", "kept.json"]


def _try_lock(path: Path, results: object) -> None:
    try:
        Lock(path)
    except BlockingIOError as error:
        results.put(str(error))  # type: ignore[attr-defined]
    else:
        results.put("locked")  # type: ignore[attr-defined]


def test_a_lock_keeps_other_processes_out_until_it_is_released(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def elsewhere() -> str:
        process = context.Process(target=_try_lock, args=(tmp_path / "lock", results))
        process.start()
        process.join()
        return str(results.get(timeout=10))

    with Lock(tmp_path / "lock") as lock:
        assert lock.in_place() and elsewhere() == f"another process holds {tmp_path / 'lock'}"
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").write_text("")
        assert not lock.in_place()
    assert elsewhere() == "locked" and elsewhere() == "locked"  # a process that ends lets go


def test_a_lock_changes_nothing_and_is_a_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("data")
    with Lock(path):
        assert path.read_text() == "data"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="is not a plain file; remove it"):
        Lock(path)


def test_a_link_that_appears_late_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    monkeypatch.setattr(Path, "is_symlink", lambda self: False)
    with pytest.raises(OSError):
        Lock(tmp_path / "lock")
    assert (tmp_path / "precious").read_text() == "data"


def test_temporary_names_are_never_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / ".foreseen").symlink_to(tmp_path / "precious")
    monkeypatch.setattr(atomic, "_temporary", lambda path: tmp_path / ".foreseen")
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "precious").read_text() == "data"


def test_a_symbolic_link_is_no_lock_file(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="is a symbolic link; remove it"):
        Lock(tmp_path / "lock")
    assert (tmp_path / "precious").read_text() == "data"


def test_a_file_system_whose_locks_have_no_effect_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with atomic.lock_folder(tmp_path):
            assert atomic.lock_excludes(tmp_path)
    monkeypatch.setattr(atomic, "_flock", lambda handle, wait: None)  # granted to everybody
    with pytest.warns(RecarcWarning, match="locks have no effect on the file system of"), atomic.lock_folder(tmp_path):
        assert not atomic.lock_excludes(tmp_path)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int, wait: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(atomic, "_flock", none)
    with pytest.raises(InputError, match=r"its file system has no locks \(No locks available\); choose a folder on"):
        atomic.lock_folder(tmp_path)
