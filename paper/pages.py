"""The documents, written from results files alone: docs/results.md, docs/performance.md, and marked parts of others."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from paper import results
from paper.claims import judge
from paper.costs import attack_passes, training_passes
from paper.items import ITEMS
from paper.items.machine import ATTACK, NETS, TRAINING
from paper.plots import draw, draw_scaling
from paper.recipe import Item, Row
from paper.results import Figure, ItemResult, RowResult
from paper.tables import Grid, grids
from recarc.errors import InputError

END = "<!-- end -->"
GPUS = 8
IMAGENET_IMAGES, IMAGENET_STEPS = 50_000, 50  # full ImageNet as in the paper, M = 2
RESULTS_HEAD = """# Results

Written by `python -m paper --render` from the files in `paper/results/`; do not edit by hand. Accuracies are in percent
with half the width of their 95 % interval (the interval itself if it is lopsided); where the paper prints a number, it
is in the column to the right. `images` is the number of test images, always the first ones of the set or file; figures
on few images have wide intervals. `tight` and `floor` are not in the paper: the staged attack of this package, and the
accuracy below which no attack can push the ensemble as long as its members alone are as robust as the strongest attack
on each of them suggests. How the members were trained is said below each table: the recipe `fast`, even more so with
fewer epochs than its own, is not the paper's training, so compare differences between columns rather than columns with
the paper. Every accuracy comes from `recarc.evaluate`: attacks may search in a faster precision than float32, but what
they find is judged in float32, while floor and alpha rest on what the search itself saw. Claims that one figure is
below another by so many points (BAT, AT, IAT, ARC against APGD) are judged by the 95 % intervals and may remain open;
where a claim says that two attacks are equally strong, they count as equal within 0.5 points on the images they were
run on. Commands are quoted as they were run; what was `recarc reproduce` then is `python -m paper` now.
"""
SPEED_HEAD = """# Performance

Written by `python -m paper --render` from the files in `paper/results/bench/`; do not edit by hand.

What makes a run fast. In the attacks: samples that cannot get any worse leave the batch, and so do those that did not
change in a whole iteration of ARC, since the next would repeat it; one backward pass per plane (the difference of two
logits), not one per class. Together that leaves an eleventh of the baseline's passes in the run below. In
`recarc.fast.accelerate(ensemble, precision)`, an ensemble to search with: batch norm is folded into the convolutions
and, for up to 64 channels, bias, shortcut and ReLU are fused with them in a Triton kernel with a gradient of its own;
float16, which rounds like TF32 in half the memory, with linear heads in float32; CUDA graphs. A search in float16 may
end up to 0.2 points above one in TF32, because a point just across a boundary in one precision can be on its other side
in another. The baselines and the other libraries run with PyTorch's defaults, on a GPU with convolutions in TF32;
"members as given" is float32 throughout.

The baseline is Algorithm 2 batch-vectorised the obvious way (`paper/bench/baseline.py`): C + 1 backward passes per
member, M^2 + 2M forward passes per iteration, every sample to the end.

Benchmarks time the attack alone; accuracies come from `recarc.evaluate`, which judges in float32. Where no evaluation
of the same attack on the same images exists, the cell is empty. Commands are quoted as they were run; the scripts of
`benchmarks/` are `python -m paper bench` now.

In the tables of attacks, ratio is to the first row of the group; forward and backward count images through a member.
The share of FLOP/s is that of a large matrix product in the precision of the row, the share of bytes/s that of a large
copy, in percent, both measured in the same run. GiB is beyond what the rows above left allocated (rows of one precision
share captured graphs).
"""


def render(folder: Path, docs: Path) -> list[Path]:
    """Draw the figures beside the results and write the documents; returns what was written."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of results; expected files that `python -m paper ITEM` wrote")
    measured, speed = gathered(folder), benchmarks(folder / "bench")
    for name, item in ITEMS.items():
        draw(item, measured[name], folder)
    for bench in speed:
        if bench.item.startswith("scaling"):
            draw_scaling(bench, folder / "bench")
    docs.mkdir(parents=True, exist_ok=True)
    pages = {"results.md": results_page(measured, folder, docs)}
    if speed:
        pages["performance.md"] = performance_page(speed, folder / "bench", docs)
    for name, text in pages.items():
        (docs / name).write_text(text, encoding="utf-8")
    parts = {"headline": headline(measured), "costs": costs_table(measured["throughput"])}
    marked = [path for path in (docs.parent / "README.md", *sorted(docs.glob("*.md"))) if path.exists()]
    changed = [path for path in marked if fill(path, parts)]
    return [*(docs / name for name in pages), *changed]


def gathered(folder: Path) -> dict[str, ItemResult]:
    """Every item by name. A row that one item measured counts for every item that asks the same question.

    A row of the item's own stays; otherwise it is the one on the most images.
    """
    found = {name: results.read(folder, name, item.title) for name, item in ITEMS.items()}
    measured: dict[str, list[RowResult]] = {}
    for name, item in ITEMS.items():
        for row in item.rows:
            own = found[name].row(row.name)
            measured.setdefault(_question(row), []).extend([own] if own is not None else [])
    for name, item in ITEMS.items():
        order = [row.name for row in item.rows]
        for row in item.rows:
            others = measured[_question(row)]
            if found[name].row(row.name) is None and others:
                best = max(others, key=lambda other: other.images)
                found[name] = found[name].with_row(replace(best, row=row.name), order)
    return found


def _question(row: Row) -> str:
    """What a row asks, whatever it is called."""
    return repr(replace(row, name=""))


def benchmarks(folder: Path) -> list[ItemResult]:
    """Everything in the folder of benchmarks: attacks, then scaling, then training; GPUs first."""
    found = [results.read(folder, path.stem) for path in folder.glob("*.json")]
    return sorted(found, key=lambda bench: (bench.item.partition("-")[0], "CPU" in bench.rows[0].hardware, bench.item))


def results_page(found: dict[str, ItemResult], folder: Path, docs: Path) -> str:
    measured = {name: result for name, result in found.items() if result.rows}
    parts = [RESULTS_HEAD, "## The claims\n", "\n".join(claim.markdown() for claim in judge(measured)) + "\n"]
    for name, item in ITEMS.items():
        if name in measured:
            parts.append(_section(item, measured[name], folder, docs))
    missing = [name for name in ITEMS if name not in measured]
    if missing:
        parts.append(f"## Not measured yet\n\n{', '.join(missing)}: `python -m paper ITEM` measures them.\n")
    return "\n".join(parts)


def _section(item: Item, result: ItemResult, folder: Path, docs: Path) -> str:
    lines = [f"## {item.name}: {item.title}\n"]
    lines += [f"The paper: {claim}.\n" for claim in item.claims]
    lines += [f"{item.note}\n"] if item.note else []
    for grid in grids(result):
        lines += [f"{grid.title}\n"] if grid.title else []
        lines.append(grid.markdown() + "\n")
    for picture in sorted(folder.glob(f"{item.name}.png")) + sorted(folder.glob(f"{item.name}-*.png")):
        if picture.stem == item.name or picture.stem[len(item.name) + 1 :] in {row.row for row in result.rows}:
            lines.append(f"![{picture.stem}]({_link(picture, docs)})\n")
    absent = [row.name for row in item.rows if result.row(row.name) is None]
    lines += [f"Not measured yet: {', '.join(absent)}.\n"] if absent else []
    lines.append("\n".join(f"- {_provenance(row)}" for row in result.rows) + "\n")
    return "\n".join(lines)


def _link(path: Path, docs: Path) -> str:
    return os.path.relpath(path, docs).replace(os.sep, "/")


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


def performance_page(speed: list[ItemResult], folder: Path, docs: Path) -> str:
    sections = {"attacks": _attacks, "scaling": _scaling, "training": _training}
    parts = [SPEED_HEAD]
    for bench in speed:
        first = bench.rows[0]
        lines = [f"## {bench.title}, on {first.hardware}", "", *sections[bench.item.partition("-")[0]](bench)]
        picture = folder / f"{bench.item}.png"
        if picture.exists():
            lines += ["", f"![Growth of the cost]({_link(picture, docs)})"]
        parts.append("\n".join([*lines, "", f"`{first.command}`, commit {first.commit}, {first.date}.", ""]))
    return "\n".join(parts)


def _attacks(bench: ItemResult) -> list[str]:
    first, facts = bench.rows[0], bench.facts
    problem = f"{first.ensemble}, {first.images} images, K = {facts['steps']}, {first.norm}, eps {first.eps}."
    lines = [problem, "", grids(bench)[0].markdown()]
    one = facts.get("one_forward_backward_gib")
    if one is not None:
        lines += ["", f"One forward and backward pass of a plain member on as many images: {one:.2f} GiB."]
    notes = list(dict.fromkeys(row.note for row in bench.rows if row.note))
    return [*lines, *(text for note in notes for text in ("", f"{note}."))]


def _scaling(bench: ItemResult) -> list[str]:
    first, facts = bench.rows[0], bench.facts
    cells = []
    for row in bench.rows:
        slope = row.figure("exponent")
        label = row.row if row.images == first.images else f"{row.row} ({row.images} images)"
        points = ", ".join(f"{size:g}: {took:.3g}" for size, took in row.curve("seconds"))
        cells.append([label, points, f"{slope.measured:.2f}" if slope else "-"])
    grid = Grid(
        "", ["axis", "seconds at size", "exponent"], [c for c, r in zip(cells, bench.rows) if r.row != "imagenet"]
    )
    lines = [
        f"Seconds of one iteration of ARC with G = {facts['planes']}, {first.precision}, ResNet-20 members, nothing "
        f"fooled. Unless the axis says otherwise: M = 2, C = 10, 32 x 32 pixels, {first.images} images.",
        "",
        grid.markdown(),
    ]
    worked = bench.row("imagenet")
    return [*lines, "", *_imagenet(worked)] if worked else lines


def _imagenet(row: RowResult) -> list[str]:
    """The worked estimate: measured seconds per image and iteration, times images and iterations."""
    ((count, took),) = row.curve("seconds")
    each = took / count
    whole = each * IMAGENET_IMAGES * IMAGENET_STEPS
    return [
        f"Full ImageNet, worked out: one iteration of ARC (G = 4) on {count:g} images of 224 x 224 with 1000 classes "
        f"and two ResNet-18s takes {took:.3g} s, that is {1000 * each:.3g} ms per image. {IMAGENET_IMAGES} images x "
        f"{IMAGENET_STEPS} iterations x {1000 * each:.3g} ms = {_duration(whole)} on one device if no sample were ever "
        "dropped; samples on which every member is fooled leave early, so this is an upper bound. Shards are "
        "independent and only the final records are exchanged, so eight devices take about "
        f"{_duration(whole / 8)} plus start-up.",
    ]


def _training(bench: ItemResult) -> list[str]:
    text = (
        f"Adversarial training with PGD-7 at batch {bench.facts['batch']}: milliseconds per step and member "
        "(fastest-slowest) against a plain eager loop in PyTorch's default precision in the same run."
    )
    return [text, "", grids(bench)[0].markdown()]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# The table of the README: the row of the item `tight`, and where else its figures are until that has been measured.
PUBLIC, PAIR = "the public DVERGE ensemble, M = 3", "BAT pair"
HEADLINE: dict[str, list[tuple[str, str, float | None]]] = {
    f"{PUBLIC}, Linf 8/255, alpha 1/3": [("tight", "dverge-linf", None), ("figure4", "dverge-linf", None)],
    f"{PAIR}, Linf 8/255, alpha (0.9, 0.1)": [("tight", "bat-linf-0.9", None), ("table1", "resnet20-linf", None)],
    f"{PAIR}, Linf 8/255, alpha (0.5, 0.5)": [("tight", "bat-linf-0.5", None), ("figure7", "linf", 0.5)],
    f"{PAIR}, L2 128/255, alpha (0.9, 0.1)": [("tight", "bat-l2-0.9", None), ("table1", "resnet20-l2", None)],
    f"{PAIR}, L2 128/255, alpha (0.5, 0.5)": [("tight", "bat-l2-0.5", None), ("figure7", "l2", 0.5)],
}


def headline(found: dict[str, ItemResult]) -> str:
    """AdaptivePGD, ARC, tight and floor of the ensembles that the README begins with."""
    cells = []
    for label, places in HEADLINE.items():
        for name, row_name, x in places:
            row = found[name].row(row_name)
            figures = [row.figure(column, x) for column in ("APGD", "ARC", "tight", "floor")] if row else [None]
            if row is not None and None not in figures:
                apgd, arc, tight, floor = (f"{f.measured:.2f}" for f in figures if isinstance(f, Figure))
                cells.append([label, str(row.images), apgd, arc, f"**{tight}**", floor])
                break
    header = ["CIFAR-10, ResNet-20 members", "test images", "AdaptivePGD", "ARC", "**tight**", "floor"]
    return Grid("", header, cells).markdown()


def costs_table(measured: ItemResult) -> str:
    """Hours for the rows of Table 2 that need data of the user's own, at the measured throughput."""
    speeds = {row.row: row for row in measured.rows}
    if set(NETS) - set(speeds):
        return "Not measured yet: `python -m paper throughput` on the machine in question, then `--render`."
    header = ["row of table2", "training, one GPU [h]", "training, 8 GPUs [h]", "attacks, one GPU [h]"]
    cells = []
    for row in ITEMS["table2"].rows:
        if row.data == "cifar10":
            continue
        speed = speeds["resnet18-224" if row.data == "imagenet" else "resnet20-32"]
        trained = training_passes(row.ensemble, "paper") / _speed(speed, TRAINING) / 3600
        attacked = attack_passes(row) / _speed(speed, ATTACK) / 3600
        cells.append([row.name, f"{trained:.1f}", f"{trained / GPUS:.1f}", f"{attacked:.2f}"])
    rates = "; ".join(
        f"{r.row}: {_speed(r, ATTACK):,.0f} and {_speed(r, TRAINING):,.0f} images/s on {r.hardware}, {r.date}"
        for r in speeds.values()
    )
    best = "Eight GPUs count as eight times one, which is the best case."
    note = f"Attack and training passes (forward and backward): {rates}. {best}"
    return f"{Grid('', header, cells).markdown()}\n\n{note}"


def _speed(row: RowResult, column: str) -> float:
    figure = row.figure(column)
    assert figure is not None
    return figure.measured


def fill(path: Path, parts: dict[str, str]) -> bool:
    """Replace what stands between `<!-- measured: NAME -->` and `<!-- end -->`; whether the file has such marks."""
    text = path.read_text(encoding="utf-8")
    filled = text
    for name, content in parts.items():
        begin = f"<!-- measured: {name} -->"
        before, mark, rest = filled.partition(begin)
        _, end, after = rest.partition(END)
        if mark and not end:
            raise InputError(f"{path} has {begin} without {END}; put the end mark back")
        if mark:
            filled = f"{before}{begin}\n{content}\n{END}{after}"
    if filled != text:
        path.write_text(filled, encoding="utf-8")
    return END in filled
