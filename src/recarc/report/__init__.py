"""The report: one HTML page, figures and tables from the records of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.report.content import Report, Section, build_report
    from recarc.report.figures import write_figures
    from recarc.report.page import render, write_page
    from recarc.report.plane import Plane, draw_plane, plane_svg
    from recarc.report.runs import Run, load_runs
    from recarc.report.tables import write_tables

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "content": "Report Section build_report",
        "figures": "write_figures",
        "page": "render write_page",
        "plane": "Plane draw_plane plane_svg",
        "runs": "Run load_runs",
        "tables": "write_tables",
    },
)
