"""A report as files: the HTML page, tables for papers, and writing them completely or not at all.

The page is a single file that needs no network; everything from outside is escaped. The tables, in LaTeX (booktabs) and
Markdown, hold the same rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from recarc.atomic import write_all
from recarc.errors import InputError, printable
from recarc.evaluation.fingerprint import attack_text, eps_text
from recarc.report.comparison import Comparison
from recarc.report.content import MEMBER, Report
from recarc.report.curves import Curve
from recarc.report.gallery import colours, data_uri
from recarc.report.svg import curve_svg, forest_svg, legend_mark, rescoring_svg, saturation_svg

SPECIAL = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]")
SIGN = re.compile(r"(?<![^\s\[])[+-](?=\d)")  # of a number: LaTeX would set a hyphen
RANGE = re.compile(r"^([\d.]+)-([\d.]+)$")
MARKDOWN = str.maketrans({"|": r"\|", "\\": r"\\", "[": r"\[", "`": r"\`", "<": "&lt;"})


def file_names(kind: str, parts: Sequence[str]) -> list[str]:
    """A file name for each part of a kind; parts that would share one are numbered."""
    names = [f"{kind}_{part}" if part else kind for part in parts]
    return [name if names.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(names, 1)]


def write_files(files: Mapping[Path, bytes]) -> list[Path]:
    try:
        write_all(files)
    except OSError as error:
        place = next(iter(files))
        raise InputError(f"cannot write {place}: {error.strerror or error}; choose another place") from None
    return list(files)


# The page -------------------------------------------------------------------------------------------------


def render(report: Report) -> str:
    """The page as text."""
    return environment().get_template("page.html").render(r=report)


def environment() -> Environment:
    """Where templates find their filters, drawings and assets; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("recarc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    rules = Rules()
    environment.filters |= {"percent": percent, "points": points, "eps": eps_text, "pretty": pretty}
    environment.globals |= {
        "curve_svg": curve_svg,
        "forest_svg": forest_svg,
        "rescoring_svg": rescoring_svg,
        "saturation_svg": saturation_svg,
        "legend_mark": legend_mark,
        "data_uri": data_uri,
        "colours": colours,
        "rule": rules,
        "drawn": rules.without_attributes,
        "asset": lambda name: Markup(_asset(environment, name)),
        "source_hash": lambda text: Markup(_source_hash(text)),
        "attack_text": attack_text,
        "MEMBER": MEMBER,
    }
    return environment


def _visible(value: Any) -> Any:
    """Text for a page: control characters and halves of characters, which no file can hold, are written out."""
    if not isinstance(value, str) or CONTROL.search(value) is None:
        return value
    text = CONTROL.sub(lambda found: printable(found[0]), str(value))
    return Markup(text) if isinstance(value, Markup) else text


class Rules:
    """Styles of single elements, as classes of a sheet: the page's security policy allows no style attributes."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def __call__(self, style: str, *values: float) -> str:
        """The class of this style, with numbers in it."""
        text = style % values if values else style
        return self.names.setdefault(text, f"s{len(self.names)}")

    def without_attributes(self, drawing: str) -> Markup:
        """An SVG drawing of our own with classes in place of style attributes."""
        drawing = re.sub(r"<style.*?</style>", "", drawing, flags=re.DOTALL)
        return Markup(re.sub(r' style="([^"<]*)"', lambda match: f' class="{self(match[1])}"', drawing))

    def sheet(self) -> Markup:
        return Markup("\n".join(f".{name} {{{text}}}" for text, name in self.names.items()))


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
    return loader.get_source(environment, name)[0].replace("\r\n", "\n")


def _source_hash(text: str) -> str:
    """How a content security policy names a script or a style that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Tables ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Cells as text; every column but the first holds numbers."""

    name: str
    caption: str
    head: list[str]
    rows: list[list[str]]

    def latex(self) -> str:
        """A `tabular` with booktabs rules; needs \\usepackage{booktabs}."""
        lines = [f"% {printable(self.caption)}", rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}", r"\toprule"]
        lines += [_row(self.head), r"\midrule", *map(_row, self.rows), r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.head) - 1)
        lines = ["| " + " | ".join(_plain(c) for c in cells) + " |" for cells in (self.head, *self.rows)]
        return "\n".join([_plain(self.caption), "", lines[0], f"| {' | '.join(rule)} |", *lines[1:]]) + "\n"


def comparison_table(comparison: Comparison) -> Table:
    notes = "".join(f"; {note}" for note in comparison.notes)
    return Table("ensembles", f"{comparison.caption}{notes}", comparison.head, comparison.rows)


def tables(report: Report) -> list[Table]:
    """Attacks, members, several ensembles, cross-robustness, and one per sweep."""
    facts = ", ".join(f"{name} {value}" for name, value in report.facts)
    rows = [
        [r.name, _percent(r.estimate.value), f"{_percent(r.estimate.low)}-{_percent(r.estimate.high)}", _above(r.above)]
        for r in report.rows
    ]
    head = ["attack", "accuracy (%)", "95 % interval", "overestimates by"]
    made = [Table("attacks", f"Expected accuracy; {facts}", head, rows)]
    members = [
        [f"member {m.index}", f"{m.alpha:.3g}", _percent(m.clean), _percent(m.alone), _percent(m.attacked)]
        for m in report.members
    ]
    head = [MEMBER, "alpha", "clean (%)", "alone (%)", f"on {report.main.label}'s inputs (%)"]
    made.append(Table("members", f"Members; {facts}", head, members))
    made += [comparison_table(report.comparison)] if report.comparison else []
    for name, matrix in zip(file_names("cross_robustness", [""] * len(report.matrices)), report.matrices):
        head = [MEMBER, *(f"against {j}" for j in matrix.columns)]
        rows = [[f"member {i}", *map(_percent, values)] for i, values in enumerate(matrix.values)]
        made.append(Table(name, f"Cross-robustness ({matrix.run}); {facts}", head, rows))
    for name, curve in zip(file_names("sweep", [curve.axis for curve in report.curves]), report.curves):
        made.append(_curve_table(name, curve))
    return made


def write_tables(report: Report, folder: str | Path) -> list[Path]:
    """attacks.tex, attacks.md, ... into a folder."""
    return write_files(table_files(report, folder))


def table_files(report: Report, folder: str | Path) -> dict[Path, bytes]:
    made = tables(report)
    texts = {f"{t.name}.tex": t.latex() for t in made} | {f"{t.name}.md": t.markdown() for t in made}
    return {Path(folder) / name: text.encode() for name, text in texts.items()}


def _curve_table(name: str, curve: Curve) -> Table:
    head = [curve.axis, *(series.name for series in curve.series)]
    estimates = {x: [series.at(x) for series in curve.series] for x in curve.xs}
    rows = [[curve.text(x), *(_percent(e.value if e else None) for e in found)] for x, found in estimates.items()]
    return Table(name, f"Accuracy (%) against {curve.label}; {curve.about}", head, rows)


def _row(cells: Sequence[str]) -> str:
    name, *numbers = ("".join(SPECIAL.get(c, c) for c in printable(cell)) for cell in cells)
    row = " & ".join([name, *(RANGE.sub(r"\1--\2", SIGN.sub(r"$\g<0>$", cell)) for cell in numbers)]) + r" \\"
    return f"{{}}{row}" if row.startswith(("[", "*")) else row  # or the row before would take it for its own option


def _plain(cell: str) -> str:
    """Text that Markdown shows as it is: no HTML, links or pictures."""
    return printable(cell).translate(MARKDOWN)


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f}"


def _above(points: float | None) -> str:
    return "" if points is None else f"{points:+.2f}" if abs(points) >= 0.005 else "0.00"
