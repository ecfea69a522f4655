"""The worked example of paper/README.md: one decorated function is a whole item of the paper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paper.__main__ import main
from paper.items import ITEMS
from paper.measure import measure
from paper.pages import gathered, page
from paper.setup import HERE, Setup


@pytest.fixture()
def table6() -> Iterator[str]:
    (block,) = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), flags=re.DOTALL)
    before = dict(ITEMS)
    exec(compile(block, "paper/README.md", "exec"), {})
    (new,) = set(ITEMS) - set(before)
    yield new
    del ITEMS[new]


def test_an_item_is_one_function(
    table6: str, toy_setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measure(ITEMS[table6], toy_setup, tmp_path, ["linf"], progress=False)
    assert [point for point, _ in found.rows[0].curve("ARC")] == [1, 5]  # at toy size, both ends of the sweep
    assert main(["--list", "--json", "--results", str(tmp_path)]) == 0
    listed = {entry["item"]: entry for entry in json.loads(capsys.readouterr().out)["items"]}
    assert listed[table6]["measured"] == ["linf"] and listed[table6]["cost"].startswith("attack ")
    assert "## table6: ARC with few steps" in page("results", gathered(tmp_path), tmp_path, tmp_path)
    assert (tmp_path / "table6.png").exists()
    assert main([table6, "--only", "l2"]) == 2
    assert "unknown row of table6 'l2'" in capsys.readouterr().err


def test_the_installed_package_knows_nothing_of_the_paper() -> None:
    for path in (HERE.parent / "src").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) paper\b", path.read_text(), flags=re.MULTILINE), path
