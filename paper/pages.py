"""The documents, written from results files alone: docs/results.md, docs/performance.md, and marked parts of others."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from paper import left, results
from paper.bench.throughput import ATTACK, NETS, TRAINING
from paper.board import board_answer, board_table
from paper.claims import judge
from paper.costs import attack_passes, training_passes
from paper.floors import BOARD, of_board
from paper.items import ITEMS
from paper.items.alphas import alphas_table
from paper.items.certificates import certificates_table
from paper.items.thorough import thorough_table
from paper.judging import Judged
from paper.plots import draw
from paper.recipe import Item
from paper.results import Figure, ItemResult, RowResult
from paper.tables import Grid, grids
from recarc.board import Board
from recarc.errors import InputError
from recarc.provenance import short

END = "<!-- end -->"
GPUS = 8
Measured = dict[str, list[ItemResult]]  # by item
RESULTS_HEAD = """# Results

Written by `python -m paper --render` from the files in `paper/results/`; do not edit by hand. Accuracies are in percent
with half the width of their 95 % interval (the interval itself if it is lopsided); where the paper prints a number, it
is in the column to the right. `images` is the number of test images, the first ones of the set or file unless the row
says otherwise; figures on few images have wide intervals. `tight` and `floor` are not in the paper: the staged attack
of this package, and the accuracy below which no attack can push the ensemble as long as its members alone are as robust
as the strongest attack on each of them suggests. How the members were trained is said below each table: the recipe
`fast`, even more so with fewer epochs than its own, is not the paper's training, so compare differences between columns
rather than columns with the paper. Every accuracy on images comes from `recarc.evaluate`: attacks may search in a
faster precision than float32, but what they find is judged in float32.

How the claims are judged. A claim is confirmed only if it holds in every row, and refuted if there is a row in which it
does not. Comparisons use 95 % intervals, paired over the images where such a difference was measured, and are corrected
for their number by Holm's method; a row that this leaves open is marked so. Rows that were not measured, or in which
the search for alpha chose one member alone, count as undecided; those on data that is not at hand (SVHN, CIFAR-100, all
of ImageNet) are named and not counted, columns that are out of date neither. Both sides of a comparison face the same
attack: ARC on the ensemble against ARC on the AT model; on a single model AdaptivePGD is PGD. Where a claim says that
two searches of one attack are equally strong, or that tight meets its floor, 0.5 points on the images at hand decide.

How alpha is chosen: on training images that training held out, never on test images that are then scored. Rows that say
"on the first N images" are older: their alpha was chosen on the first N of the very test images they are scored on.

Below each table, every row names the commit that measured it, and the command as of that commit. Rows whose command is
`recarc reproduce` or a script of `benchmarks/` were measured before the redesign that turned both into `python -m
paper`: their floors were taken from the search's own precision, while floors measured since then are judged in float32.
Alpha is chosen in the precision of the search, then and now. The same attack may end slightly higher or lower at
another commit: ARC with all 9 planes is in table1 and, measured later, in table5-cifar10.

Rows that were not measured are named with the minutes of one H200 that they would take, computed from passes and
measured speeds: training with the recipe `fast` (with the paper's own on data that is not at hand, for which [full-size
runs](full_size.md) has the commands) and all attacks on the whole test set. What is left to do on the data at hand,
also in rows that were measured on fewer images, is planned at the end.
"""
SPEED_HEAD = """# Performance

Written by `python -m paper --render` from the files `paper/results/bench-*.json`; do not edit by hand.

What makes a run fast. In the attacks: samples that cannot get any worse leave the batch, and so do those that did not
change in a whole iteration of ARC, since the next would repeat it; one backward pass per plane (the difference of two
logits), not one per class. Together that leaves an eleventh of the baseline's passes in the run below. Since then ARC
also leaves out planes that are too far to be the nearest (`bench-planes` counts what that saves); rows of earlier
commits do not have it. In `recarc.fast.accelerate(ensemble, precision)`, an ensemble to search with: batch norm is
folded into the convolutions and bias, shortcut and ReLU are fused with them: for up to 64 channels in a Triton kernel
with a gradient of its own, for more by cuDNN; float16, which rounds like TF32 in half the memory, with the layers that
make the logits in float32; CUDA graphs of a few sizes, captured when they are first needed, so that a handful of
samples costs a handful of launches; the planes of few samples side by side in one pass. Our Triton kernels are compiled
once per machine, as many at a time as there are cores. In `evaluate` batches span shards, so that the last few samples
are waited for once. Pure float32, which has no tensor cores, runs in the fastest of four ways (two layouts, kernels
tried out or not), measured once and kept in the cache, but not in `evaluate`, whose records must not depend on a
stopwatch. A search in float16 may end up to 0.2 points above one in TF32, because a point just across a boundary in one
precision can be on its other side in another. The baselines and the other libraries run with PyTorch's defaults, on a
GPU with convolutions in TF32; "members as given" is float32 throughout.

The baseline is Algorithm 2 batch-vectorised the obvious way (`paper/bench/baseline.py`): C + 1 backward passes per
member, M^2 + 2M forward passes per iteration, every sample to the end.

What we aim for on an H200, as ratios to the baseline at its better batch size, and where we are (the tables below):

| work | aim | measured | why not |
|---|---|---|---|
| ARC, a stranger's ResNet-20, linf / l2 | 40 x / 20 x | 46.2 x / 27.6 x | |
| ARC, ResNet-18, linf / l2 | 20 x / 10 x | 32.2 x / 18.4 x | a pair of 8 and 6 epochs, which keeps 37.7 % and 45.8 %; \
more images stay to the end on a better one |
| ARC, WRN-28-10, ResNet-50, ViT-S | 6 x each | WRN 9.7 x / 9.1 x, ResNet-50 4.7 x / 4.5 x, ViT-S 8.0 x / 6.6 x | \
with `planes=4`, as for ResNet-50 and ViT-S, none is left out; ResNet-50 makes 16,000 passes a second |
| any row, like beside like | 1 x | 1.01 x: AdaptivePGD in float32, first call; 1.05 x later; on two CPU cores 0.97 x \
and 1.0 x | no tensor cores, and all samples stay to the end |
| a first call over later ones | 4 s | 2.3 s at most, but 8.6 s in pure float32 on ResNet-18 | the first process on \
a machine tries four ways out and keeps the fastest |
| the whole of `recarc evaluate zoo:bat-resnet20-linf`, 10,000 images, a second process | 8 s | 12.8 s; the \
first on a machine 23.9 s | below |
| the same with two ResNet-18s (the pair of Table 1) | 45 s | 33.1 s; the first on a machine 34.6 s | |
| two CPU cores, ARC linf / l2 | 10 x / 6 x | 37.5 x / 15.4 x; a stranger's ResNet-20 32.5 x / 16.4 x (64 images) | |
| peak memory over one forward and backward pass | 1.5 x | float16 0.4 to 1.2 x, on ViT-S 1.6 x; TF32 0.8 to 1.1 x; \
float32 1.1 x, on 1,000 images of ResNet-18 2.6 x | captured tiles of several sizes each keep their own activations |

Of those 12.8 s, `python -m paper bench-command` puts 7.7 s down to the attack and its judging; a good 2 s go to
importing and to starting CUDA, the rest to reading, preparing and measuring the members. The attack begins with full
batches of AdaptivePGD, ARC and AutoPGD; Climb on the few samples still above their floor, the challenge and the judging
in float32 leave a GPU all but idle.

While the rows of commit 2425789785 were measured, nothing else ran, but stopped processes held 40 to 100 GB of the
GPU's memory; the whole command makes its batches for the memory that is free.

Benchmarks time the attack alone; accuracies come from `recarc.evaluate`, which judges in float32. Where no evaluation
of the same attack on the same images exists, the cell is empty. Every row names the commit that measured it, and the
command as of that commit: a script of `benchmarks/` means that it was measured before these scripts became the items
`bench-...` of `python -m paper`.
"""
WORST_FIRST = "bench-networks"
HEADS = {"results": RESULTS_HEAD, "performance": SPEED_HEAD}


def render(folder: Path, docs: Path) -> list[Path]:
    """Draw the figures beside the results and write the documents; returns what was written."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of results; expected files that `python -m paper ITEM` wrote")
    measured = gathered(folder)
    for name, found in measured.items():
        for result in found:
            draw(ITEMS[name], result, folder)
    docs.mkdir(parents=True, exist_ok=True)
    written = []
    for name in ("results", "performance"):
        written.append(docs / f"{name}.md")
        written[-1].write_text(page(name, measured, folder, docs), encoding="utf-8")
    parts = marked_parts(measured, folder)
    marked = [path for path in (docs.parent / "README.md", *sorted(docs.glob("*.md"))) if path.exists()]
    return [*written, *(path for path in marked if fill(path, parts))]


def marked_parts(measured: Measured, folder: Path) -> dict[str, str]:
    """What stands between the marks in README and docs, by name."""
    return {
        "headline": headline(measured),
        "costs": costs_table(measured),
        "gallery": gallery_table(measured),
        "certificates": certificates_table(measured["certificates"]),
        "answer": board_answer(folder / "board.json"),
        "board": board_table(folder / "board.json"),
        "alphas": alphas_table(measured["alphas"]),
        "thorough": thorough_table(measured["thorough"]),
    }


def gathered(folder: Path) -> Measured:
    """What was measured of every item; of a benchmark on every machine, GPUs first.

    A row that one item measured counts for every item that asks the same question. A row of the item's own stays;
    otherwise it is the one on the most images.
    """
    found: dict[str, ItemResult] = {}
    measured: dict[str, list[RowResult]] = {}
    for name, item in ITEMS.items():
        found[name] = results.read(folder, name, item.title)
        for row in item.rows:
            own = found[name].row(row.name)
            measured.setdefault(row.question, []).extend([own] if own is not None else [])
    for name, item in ITEMS.items():
        order = [row.name for row in item.rows]
        for row in item.rows:
            others = measured[row.question]
            if found[name].row(row.name) is None and others:
                best = max(others, key=lambda other: other.images)
                found[name] = found[name].with_row(replace(best, row=row.name), order)
    gathered = {name: [result] if result.rows else [] for name, result in found.items()}
    for name, item in ITEMS.items():
        if item.page == "performance":
            machines = [results.read(folder, path.stem) for path in sorted(folder.glob(f"{name}-*.json"))]
            gathered[name] = sorted(machines, key=lambda result: "CPU" in result.rows[0].hardware)
    return gathered


def claims_of(measured: Measured, folder: Path) -> list[Judged]:
    """Judged by the items and by the board."""
    results = {name: found[0] for name, found in measured.items() if found}
    return judge({**results, BOARD: of_board(Board.read(folder / "board.json"))})


def page(name: str, measured: Measured, folder: Path, docs: Path) -> str:
    """The document of this name."""
    parts = [HEADS[name]]
    if name == "results":
        parts += ["## The claims\n", "\n".join(claim.markdown() for claim in claims_of(measured, folder)) + "\n"]
    items = [item for item in ITEMS.values() if item.page == name]
    for item in items:
        for i, result in enumerate(measured[item.name]):
            parts.append(_section(item, result, folder, docs, first=i == 0))
    missing = [item for item in items if not measured[item.name]]
    if missing:
        parts.append(f"## Not measured yet\n\n{left.absent_items(missing)}\n")
    plan = left.plan(measured) if name == "results" else ""
    if plan:
        parts.append(f"## Left to measure\n\n{plan}")
    return "\n".join(parts)


def worst_first(row: RowResult) -> tuple[bool, float]:
    """Our rows by their ratio to the plain loop, those without one that is up to date, then the plain loops."""
    ratio = next((f.measured for f in row.current.figures if f.column == "ratio"), float("inf"))
    return "plain loop" in row.row, ratio


def _section(item: Item, result: ItemResult, folder: Path, docs: Path, first: bool = True) -> str:
    if item.name == WORST_FIRST:
        result = replace(result, rows=tuple(sorted(result.rows, key=worst_first)))
    machine = f", on {result.rows[0].hardware}" if item.page == "performance" else ""
    lines = [f"## {item.name}: {item.title}{machine}\n"]
    lines += [f"The paper: {claim}.\n" for claim in item.claims]
    lines += [f"{item.note}\n"] if item.note and first else []
    for grid in grids(result):
        lines += [f"{grid.title}\n"] if grid.title else []
        lines.append(grid.markdown() + "\n")
    lines += [f"Out of date: {name} of {row.row}. {why}\n" for row in result.rows for name, why in row.stale.items()]
    for picture in sorted(folder.glob(f"{result.item}.png")) + sorted(folder.glob(f"{result.item}-*.png")):
        if picture.stem == result.item or picture.stem[len(item.name) + 1 :] in {row.row for row in result.rows}:
            link = os.path.relpath(picture, docs).replace(os.sep, "/")
            lines.append(f"![{picture.stem}]({link})\n")
    absent = [row for row in item.rows if result.row(row.name) is None]
    lines += left.absent(absent)
    sources: dict[str, list[str]] = {}
    for row in result.rows:
        sources.setdefault(_provenance(row), []).append(row.row)
    for source, rows in sources.items():
        names = "; ".join(rows) if len(sources) > 1 or len(rows) == 1 else "all rows"
        lines.append(f"- {names}: {source}")
    lines.append("")
    return "\n".join(lines)


def _provenance(row: RowResult) -> str:
    recipe = f" ({row.recipe})" if row.recipe else ""
    ball = f"{row.norm} eps {row.eps}" if row.norm else ""
    problem = ", ".join(part for part in (f"{row.ensemble}{recipe}", row.data, ball) if part)
    alpha = f"alpha: {row.alpha_chosen_by}" if row.alpha_chosen_by else ""
    alpha += ", which are scored as well" if row.alpha_saw_test else ""
    search = f", searched in {row.precision}" if row.precision not in ("", "float32") else ""
    took = f"{row.seconds:.0f} s on {row.hardware}" if row.seconds or row.recipe else f"on {row.hardware}"
    commit = short(row.commit or "no commit")
    text = "; ".join(
        part for part in (problem, alpha, f"{took}{search}, {row.date}, {commit}", f"`{row.command}`") if part
    )
    return text + (f". {row.note}" if row.note else "")


# The table of the README: the row of the item `tight`, and where else its figures are until that has been measured.
PUBLIC, PAIR = "the public DVERGE ensemble, M = 3", "BAT pair"
HEADLINE: dict[str, list[tuple[str, str, float | None]]] = {
    f"{PUBLIC}, Linf 8/255, alpha 1/3": [("tight", "dverge-linf", None), ("figure4", "dverge-linf", None)],
    f"{PAIR}, Linf 8/255, alpha (0.9, 0.1)": [("tight", "bat-linf-0.9", None), ("table1", "resnet20-linf", None)],
    f"{PAIR}, Linf 8/255, alpha (0.5, 0.5)": [("tight", "bat-linf-0.5", None), ("figure7", "linf", 0.5)],
    f"{PAIR}, L2 128/255, alpha (0.9, 0.1)": [("tight", "bat-l2-0.9", None), ("table1", "resnet20-l2", None)],
    f"{PAIR}, L2 128/255, alpha (0.5, 0.5)": [("tight", "bat-l2-0.5", None), ("figure7", "l2", 0.5)],
}


def headline(measured: Measured) -> str:
    """AdaptivePGD, ARC, tight and floor of the ensembles that the README begins with, and how each was measured."""
    cells = []
    for label, places in HEADLINE.items():
        for name, row_name, x in places:
            row = next((row for result in measured[name] for row in result.rows if row.row == row_name), None)
            figures = [row.figure(column, x) for column in ("APGD", "ARC", "tight", "floor")] if row else [None]
            if row is not None and None not in figures:
                apgd, arc, tight, floor = (f"{f.measured:.2f}" for f in figures if isinstance(f, Figure))
                cells.append([label, str(row.images), _preset(row), apgd, arc, f"**{tight}**", floor])
                break
    header = [
        "CIFAR-10, ResNet-20 members",
        "test images",
        "preset of tight",
        "AdaptivePGD",
        "ARC",
        "**tight**",
        "floor",
    ]
    return Grid("", header, cells).markdown()


def _preset(row: RowResult) -> str:
    """The effort of the tight attack, from the attack that the row recorded."""
    found = re.search(r"preset='(\w+)'", row.attacks.get("tight", ""))
    return found[1] if found else "not recorded"


def gallery_table(measured: Measured) -> str:
    """Of each kind of member, the figures of all seeds, the verdicts, and the signals that forbid a conclusive one."""
    rows = [row for result in measured["gallery"] for row in result.rows]
    if not rows:
        return "Not measured yet: `python -m paper gallery`, then `--render`."
    kinds: dict[str, list[RowResult]] = {}
    for row in rows:
        kinds.setdefault(row.row.rpartition(", seed ")[0], []).append(row)
    columns = [figure.column for figure in rows[0].figures]
    cells = []
    for kind, found in kinds.items():
        figures = [" / ".join(f"{row.figures[k].measured:.1f}" for row in found) for k in range(len(columns))]
        notes = [row.note.split(", ") for row in found]  # the verdict, then the signals
        always = [name for name in notes[0][1:] if all(name in note[1:] for note in notes)]
        cells.append([kind, *figures, " / ".join(dict.fromkeys(note[0] for note in notes)), ", ".join(always)])
    last = rows[-1]
    problem = f"{last.images} test images of digits, {last.norm} eps {last.eps}"
    note = f"{problem}; {last.hardware}, {last.date}, {short(last.commit or '')}, `{last.command}`."
    return f"{Grid('', ['member', *columns, 'verdict', 'signals with every seed'], cells).markdown()}\n\n{note}"


def costs_table(measured: Measured) -> str:
    """Hours for the rows of Table 2 that need data of the user's own, at the measured throughput."""
    speeds = {row.row: row for result in measured["throughput"] for row in result.rows}
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
