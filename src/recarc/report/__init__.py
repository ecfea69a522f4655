"""The report: one HTML page, figures and tables from the records of runs."""

from recarc.report.content import Report, Section, build_report
from recarc.report.figures import write_figures
from recarc.report.plane import Plane, draw_plane, plane_svg
from recarc.report.runs import Run, load_runs
from recarc.report.writing import render, write_page, write_tables

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
