"""Tables for papers: LaTeX (booktabs) and Markdown, from the same rows as the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recarc.atomic import write_bytes
from recarc.errors import InputError
from recarc.report.content import Report, file_names
from recarc.report.curves import Curve

SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


@dataclass(frozen=True)
class Table:
    """Cells as text; every column but the first holds figures."""

    name: str
    caption: str
    head: list[str]
    rows: list[list[str]]

    def latex(self) -> str:
        """A `tabular` with booktabs rules; needs \\usepackage{booktabs}."""
        lines = [f"% {self.caption}", rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}", r"\toprule"]
        lines += [_row(self.head), r"\midrule", *map(_row, self.rows), r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.head) - 1)
        lines = ["| " + " | ".join(_plain(c) for c in cells) + " |" for cells in (self.head, *self.rows)]
        return "\n".join([self.caption, "", lines[0], f"| {' | '.join(rule)} |", *lines[1:]]) + "\n"


def tables(report: Report) -> list[Table]:
    """Attacks, members, cross-robustness, and one a sweep."""
    facts = ", ".join(f"{name} {value}" for name, value in report.facts)
    rows = [
        [r.name, _percent(r.estimate.value), f"{_percent(r.estimate.low)}-{_percent(r.estimate.high)}", _above(r.above)]
        for r in report.rows
    ]
    head = ["attack", "accuracy (%)", "95 % interval", "flatters by"]
    found = [Table("attacks", f"Expected accuracy; {facts}", head, rows)]
    members = [
        [f"member {m.index + 1}", f"{m.alpha:.3g}", _percent(m.clean), _percent(m.alone), _percent(m.attacked)]
        for m in report.members
    ]
    head = ["member", "alpha", "clean (%)", "alone (%)", f"on {report.main.title}'s inputs (%)"]
    found.append(Table("members", f"Members; {facts}", head, members))
    for name, matrix in zip(file_names("cross_robustness", [""] * len(report.matrices)), report.matrices):
        head = ["member", *(f"made for {j + 1}" for j in matrix.columns)]
        rows = [[f"member {i + 1}", *map(_percent, values)] for i, values in enumerate(matrix.values)]
        found.append(Table(name, f"Cross-robustness ({matrix.run}); {facts}", head, rows))
    for name, curve in zip(file_names("sweep", [curve.axis for curve in report.curves]), report.curves):
        found.append(_curve_table(name, curve))
    return found


def write_tables(report: Report, folder: str | Path) -> list[Path]:
    """attacks.tex, attacks.md, ... into a folder."""
    texts = {f"{t.name}.tex": t.latex() for t in tables(report)} | {
        f"{t.name}.md": t.markdown() for t in tables(report)
    }
    return write_texts(folder, texts)


def write_texts(folder: str | Path, texts: dict[str, str]) -> list[Path]:
    target = Path(folder)
    try:
        for name, text in texts.items():
            write_bytes(target / name, text.encode())
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from None
    return [target / name for name in texts]


def _curve_table(name: str, curve: Curve) -> Table:
    def cell(series_index: int, x: float) -> str:
        series = curve.series[series_index]
        if series.constant:
            return _percent(series.points[0].estimate.value)
        return next((_percent(p.estimate.value) for p in series.points if p.x == x), "")

    rows = [[curve.text(x), *(cell(i, x) for i in range(len(curve.series)))] for x in curve.xs]
    return Table(
        name, f"Accuracy (%) against {curve.label}; {curve.about}", [curve.axis, *(s.name for s in curve.series)], rows
    )


def _row(cells: Sequence[str]) -> str:
    return " & ".join("".join(SPECIAL.get(c, c) for c in cell) for cell in cells) + r" \\"


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f}"


def _above(points: float | None) -> str:
    return "" if points is None else f"{points:+.2f}" if abs(points) >= 0.005 else "0.00"
