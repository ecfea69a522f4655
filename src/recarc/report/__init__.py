"""The report: one HTML page, figures and tables from the records of runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recarc.report.content import Report, Section, build_report
    from recarc.report.figures import write_figures
    from recarc.report.page import render, write_page
    from recarc.report.plane import Plane, draw_plane, plane_svg
    from recarc.report.runs import Run, load_runs
    from recarc.report.tables import write_tables

__all__ = [
    "Plane",
    "Report",
    "Run",
    "Section",
    "build_report",
    "draw_plane",
    "load_runs",
    "plane_svg",
    "render",
    "write_figures",
    "write_page",
    "write_tables",
]

_HOMES = {
    "content": ("Report", "Section", "build_report"),
    "figures": ("write_figures",),
    "page": ("render", "write_page"),
    "plane": ("Plane", "draw_plane", "plane_svg"),
    "runs": ("Run", "load_runs"),
    "tables": ("write_tables",),
}


def __getattr__(name: str) -> Any:
    for home, exported in _HOMES.items():
        if name in exported:
            return getattr(importlib.import_module(f"recarc.report.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
