"""examples/tour.ipynb runs, and its outputs are kept; what a notebook shows of every object; the moving line."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from recarc import Evaluation, InputError, evaluate
from recarc.attacks import Tight
from recarc.evaluation import RecarcWarning
from recarc.geometry import Ball
from recarc.report import build_report
from recarc.testing import small_problem

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(TOUR.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_tour_keeps_its_outputs() -> None:
    shown = [output for cell in cells() for output in cell["outputs"]]
    html = ["".join(output["data"].get("text/html", "")) for output in shown if "data" in output]
    assert sum("<table>" in text for text in html) >= 3 and any("image/png" in o.get("data", {}) for o in shown)
    assert not [o for o in shown if o["output_type"] == "error"] and "/tmp" not in TOUR.read_text()


def test_the_tour_runs() -> None:
    if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"):
        import nbformat  # type: ignore[import-not-found,unused-ignore]
        from nbclient import NotebookClient  # type: ignore[import-not-found,unused-ignore]

        notebook = nbformat.read(TOUR, as_version=4)
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
        return
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        for cell in cells():
            exec("".join(cell["source"]), names)
    assert names["page"].exists() and len(names["comparison"].entries) == 3


@pytest.fixture(scope="module")
def result() -> Evaluation:
    import torch

    ensemble, x, y = small_problem(30, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        return evaluate(ensemble, Tight("quick", steps=2), (x, y), Ball("linf", 0.1), progress=False, shard_size=8)


def test_every_object_shows_itself(result: Evaluation) -> None:
    assert result.verdict is not None
    ensemble, _, _ = small_problem()
    for shown in (result, result.verdict, result.robust, ensemble, build_report(result)):
        assert "<" in shown._repr_html_() and "<script" not in shown._repr_html_()
    assert "not conclusive" in result.verdict._repr_html_() and "Sequential" in ensemble._repr_html_()
    assert [text.get_text() for text in result.plot().axes[0].get_yticklabels()][-1] == "Clean"


def test_an_evaluation_in_memory_can_be_saved(result: Evaluation, tmp_path: Path) -> None:
    loaded = Evaluation.load(result.save(tmp_path / "run"))
    assert loaded.to_json() == result.to_json() and loaded.complete
    assert result.report(tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match="already holds a run"):
        result.save(tmp_path / "run")
    with pytest.raises(InputError, match="only a finished evaluation"):
        Evaluation(result.records, result.alpha).save(tmp_path / "other")


def test_one_moving_line_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutStream(io.StringIO):
        pass

    OutStream.__module__ = "ipykernel.iostream"
    stream = OutStream()
    ensemble, x, y = small_problem(20)
    monkeypatch.setattr(sys, "stderr", stream)
    evaluate(ensemble.float(), lambda rec, x, y, ball: x, (x.float(), y), Ball("linf", 0.1))
    assert stream.getvalue().startswith("\rattacked 20 of 20 samples, robust ") and stream.getvalue().count("\n") == 1
