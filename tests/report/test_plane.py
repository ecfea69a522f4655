"""The plane picture tells the truth: every point in it is what the attack or the exact solver returns."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from recarc import Ball, InputError
from recarc.exact import optimum
from recarc.report.plane import THREE, TWO, Plane, plane_svg, solved, write_plane


@pytest.mark.parametrize("plane", [TWO, THREE], ids=["two", "three"])
def test_the_story_of_the_picture(plane: Plane) -> None:
    """AdaptivePGD ends on the ball with nobody fooled; the optimum is exact, and no attack is below it."""
    found = solved(plane)
    assert found.accuracy["AdaptivePGD"] == 1.0
    assert found.accuracy["optimum"] <= found.accuracy["ARC"] < 1.0
    assert np.hypot(*found.path[-1]) == pytest.approx(plane.eps, abs=1e-6)
    ensemble, x, y = plane.ensemble(), torch.zeros(1, 2), torch.ones(1, dtype=torch.long)
    exact = optimum(ensemble, x, y, Ball("l2", plane.eps, box=None))
    assert found.accuracy["optimum"] == float(exact.accuracy[0])
    assert float(ensemble.expected_accuracy(torch.tensor(found.optimal)[None], y)) == found.accuracy["optimum"]


def test_three_members_need_more_than_arc() -> None:
    found = solved(THREE)
    assert found.accuracy["optimum"] < found.accuracy["ARC"]


def test_the_path_starts_along_the_auxiliary_classifier() -> None:
    for plane in (TWO, THREE):
        found = solved(plane)
        first = found.path[1] / np.hypot(*found.path[1])
        normal = -found.auxiliary / np.hypot(*found.auxiliary)
        assert first @ normal == pytest.approx(1.0, abs=1e-4)


def test_files(tmp_path: Path) -> None:
    for kind in ("png", "svg", "pdf"):
        assert write_plane(tmp_path / f"theory.{kind}").stat().st_size > 5000
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        write_plane(tmp_path / "theory.gif")


def test_a_title_stays_inside_its_attribute() -> None:
    svg = plane_svg(replace(TWO, title='x" onload="alert(1)'))
    assert 'aria-label="x&quot; onload=&quot;alert(1) in the plane' in svg
    assert "onload" not in ElementTree.fromstring(svg).attrib


def test_on_a_page_the_colours_are_the_pages() -> None:
    svg = plane_svg(TWO)
    assert svg.startswith("<svg") and 'role="img"' in svg and "var(--adaptive)" in svg and "#b04a06" not in svg
    ids = [set(re.findall(r'<clipPath id="(.*?)"', text)) for text in (svg, plane_svg(THREE))]
    assert all(ids) and not ids[0] & ids[1], "two drawings on one page would share their clips"
