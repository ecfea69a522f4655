"""The report: one HTML page, figures and tables from the records of runs."""

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.report.comparison import Comparison, compare
    from recarc.report.content import Report, Section, build_report
    from recarc.report.figures import attacks_figure, write_figures
    from recarc.report.plane import Plane, draw_plane, plane_svg
    from recarc.report.runs import Run, load_runs
    from recarc.report.writing import render, write_page, write_tables

__getattr__, __dir__, __all__ = attach(__name__)
