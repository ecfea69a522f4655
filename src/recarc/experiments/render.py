"""`python -m recarc.experiments.render RESULTS DOCS`: the documents' measured parts, from results files alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from recarc.errors import InputError
from recarc.experiments.catalog import ITEMS
from recarc.experiments.claims import judge
from recarc.experiments.figures import draw
from recarc.experiments.gather import gathered
from recarc.experiments.layout import grids
from recarc.experiments.recipe import Item
from recarc.experiments.results import ItemResult, RowResult
from recarc.experiments.throughput import costs

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEAD = """# Results

Written by `recarc reproduce --render` from the files in `results/paper/`; do not edit it by hand. Accuracies are in
percent with half the width of their 95 % interval (the interval itself where it is lopsided), the paper's number in the
column to the right where it prints one. `images` is the number of test images, the first ones of the set or file;
figures on few images have wide intervals. `tight` and `floor` are not in the paper: the staged attack of this package,
and the accuracy below which no attack can push the ensemble as long as its members are as robust alone as the strongest
attack on each found them. Below each table stands how the members were trained: the recipe `fast`, and the more so in
fewer epochs than its own, is not the paper's training, so compare differences between columns rather than columns with
the paper. Where attacks searched in a faster precision than float32, what they found was judged in float32, while the
floor and alpha rest on what the search itself saw; a float16 search may stop up to 0.2 points short of the figures in
`results/tight.json`, for which search and judgement ran in PyTorch's default for convolutions, TF32. Claims that one
figure is below another by so many points (BAT, AT, IAT, ARC against APGD) are judged by the 95 % intervals and may stay
open; where a claim says that two attacks do as well, they count as equal within 0.5 points on the images they were run
on.
"""


def render(folder: Path, docs: Path) -> list[Path]:
    """Draws the figures beside the results; writes docs/results.md and the measured part of docs/full_size.md."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of results; expected files that `recarc reproduce` wrote")
    found = gathered(folder)
    for name, item in ITEMS.items():
        draw(item, found[name], folder)
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "results.md"
    page.write_text(results_page(found, folder, docs), encoding="utf-8")
    written, guide = [page], docs / "full_size.md"
    if guide.exists():
        guide.write_text(filled(guide.read_text(encoding="utf-8"), costs(found["throughput"])), encoding="utf-8")
        written.append(guide)
    return written


def results_page(found: dict[str, ItemResult], folder: Path, docs: Path) -> str:
    measured = {name: result for name, result in found.items() if result.rows}
    parts = [HEAD, "## The claims\n", "\n".join(claim.markdown() for claim in judge(measured)) + "\n"]
    for name, item in ITEMS.items():
        if name in measured:
            parts.append(_section(item, measured[name], folder, docs))
    missing = [name for name in ITEMS if name not in measured]
    if missing:
        parts.append(f"## Not measured yet\n\n{', '.join(missing)}: `recarc reproduce ITEM` measures them.\n")
    return "\n".join(parts)


def _section(item: Item, result: ItemResult, folder: Path, docs: Path) -> str:
    lines = [f"## {item.name}: {item.title}\n"]
    lines += [f"The paper: {said}.\n" for said in item.says]
    lines += [f"{item.note}\n"] if item.note else []
    for grid in grids(result):
        lines += [f"{grid.title}\n"] if grid.title else []
        lines.append(grid.markdown() + "\n")
    for picture in sorted(folder.glob(f"{item.name}.png")) + sorted(folder.glob(f"{item.name}-*.png")):
        if picture.stem == item.name or picture.stem[len(item.name) + 1 :] in {row.row for row in result.rows}:
            lines.append(f"![{picture.stem}]({os.path.relpath(picture, docs).replace(os.sep, '/')})\n")
    absent = [row.name for row in item.rows if result.row(row.name) is None]
    lines += [f"Not measured yet: {', '.join(absent)}.\n"] if absent else []
    lines.append("\n".join(f"- {_provenance(row)}" for row in result.rows) + "\n")
    return "\n".join(lines)


def _provenance(row: RowResult) -> str:
    alpha = f"; alpha: {row.alpha_chosen_by}" if row.alpha_chosen_by else ""
    recipe = f" ({row.recipe})" if row.recipe else ""
    search = f", searched in {row.precision}" if row.precision not in ("", "float32") else ""
    ball = f", {row.norm} eps {row.eps}" if row.norm else ""
    commit = " and ".join(known[:10] for known in (row.commit or "no commit known").split(" and "))
    return (
        f"{row.row}: {row.ensemble}{recipe}, {row.data}{ball}{alpha}; {row.seconds:.0f} s on {row.hardware}{search}, "
        f"{row.date}, {commit}; `{row.command}`" + (f". {row.note}" if row.note else "")
    )


def filled(text: str, measured: str) -> str:
    """The text between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"full_size.md has lost its marks {BEGIN!r} and {END!r}; put them back")
    return f"{before}{BEGIN}\n{measured}\n{END}{after}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for path in render(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
