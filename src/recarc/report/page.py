"""The HTML page: a single file that needs no network; everything from outside is escaped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from recarc.evaluation.fingerprint import attack_text, eps_text
from recarc.report.content import Report
from recarc.report.files import write_files
from recarc.report.gallery import colours, data_uri
from recarc.report.svg import curve_svg, legend_mark, rescoring_svg, saturation_svg


def render(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("recarc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points, "eps": eps_text, "pretty": pretty}
    environment.globals |= {
        "curve_svg": curve_svg,
        "rescoring_svg": rescoring_svg,
        "saturation_svg": saturation_svg,
        "legend_mark": legend_mark,
        "data_uri": data_uri,
        "colours": colours,
        "trusted": Markup,
        "asset": lambda name: Markup(_asset(environment, name)),
        "attack_text": attack_text,
    }
    return environment.get_template("page.html").render(r=report)


def write_page(report: Report, path: str | Path) -> Path:
    """Write the page completely or not at all."""
    return write_files({Path(path): render(report).encode()})[0]


def percent(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:.{digits}f}"


def points(value: float) -> str:
    """A difference in points; one that rounds to zero has no sign."""
    return "0" if abs(value) < 0.05 else f"+{value:.1f}" if value > 0 else f"−{-value:.1f}"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _asset(environment: Environment, name: str) -> str:
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0]
