"""docs/performance.md and its plots, from results/speed.json alone: every figure on the page was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import ROOT

PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
IMAGES, STEPS = 50_000, 50  # full ImageNet as in the paper, M = 2
Entry = dict[str, Any]

HEAD = """# Performance

Written by `python benchmarks/scaling.py --render` from `results/speed.json`; do not edit by hand.

What makes a run fast. In the attacks: samples that cannot get worse leave the batch, and so do those that stood still
for a whole iteration of ARC, since the next would repeat it; one backward pass a plane (the difference of two logits),
not one a class; together that leaves an eleventh of the baseline's passes in the run below. In
`recarc.fast.accelerate(ensemble, precision)`, an ensemble to search with: batch norm folded into the
convolutions and, for up to 64 channels, bias, shortcut and ReLU too, in a Triton kernel with a gradient of its own;
float16, which rounds like TF32 in half the memory, with linear heads in float32; CUDA graphs. Every reported accuracy
is computed with the original members in float32; a search in float16 may stop up to 0.2 points short of one in TF32,
because a point just across a boundary in one precision can be on its other side in another. The baselines and the other
libraries run as PyTorch comes, on a GPU with convolutions in TF32; "members as given" is float32 throughout.

The baseline is Algorithm 2 batch-vectorised the obvious way (`benchmarks/baseline.py`): C + 1 backward passes a
member, M^2 + 2M forward passes an iteration, every sample to the end.
"""


def render(results: Path) -> str:
    """Write the page; returns where it is."""
    entries: list[Entry] = json.loads(results.read_text()) if results.exists() else []
    parts = [HEAD]
    for what, section in (("attacks", _attacks), ("scaling", _scaling), ("training", _training)):
        for entry in _latest(entries, what):
            parts.append(section(entry))
    if not any(entry["what"] in ("attacks", "scaling") for entry in entries):
        parts.append("No measurements yet: run `benchmarks/attacks.py` and `benchmarks/scaling.py` with `--json`.\n")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(parts))
    return str(PAGE.relative_to(ROOT))


def _groups(entry: Entry) -> tuple[str, ...]:
    """What an entry of attacks measured: a later run of other groups does not replace it."""
    return tuple(sorted({row["group"] for row in entry["figures"].get("rows", []) if "group" in row}))


def _latest(entries: list[Entry], what: str) -> list[Entry]:
    """The newest entry of each kind of run on each machine."""
    newest = {
        (e["hardware"], e["figures"].get("ensemble"), e["figures"].get("arch"), _groups(e)): e
        for e in entries
        if e["what"] == what
    }
    return list(newest.values())


def _source(entry: Entry) -> str:
    return f"`{entry['command']}`, commit {entry['commit']}, {entry['date']}."


def _attacks(entry: Entry) -> str:
    f = entry["figures"]
    lines = [
        f"## Side by side on {entry['hardware']}",
        "",
        f"{f['ensemble']}, {f['images']} images, K = {f['steps']}, {f['ball']}. Ratio: to the first row of the group. "
        "Passes: images through a member, forward + backward. Share: of the FLOP/s of a large matrix product in the "
        "precision of the row and of the bytes/s of a large copy, measured in the same run. GiB: beyond what the rows "
        "above it left allocated (rows of one precision share captured graphs).",
        "",
        "| group | what | seconds | ratio | robust % | passes | GiB | FLOP % | bytes % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in f["rows"]:
        lines.append(
            f"| {r['group']} | {r['what']} | {r['seconds']:.3g} ({min(r['times']):.3g}-{max(r['times']):.3g}) "
            f"| {_number(r['ratio'], '.1f')} | {r['robust']:.2f} | {r['forward']} + {r['backward']} "
            f"| {_number(r['memory'], '.2f')} | {_number(r['share_of_flops'], '.1f', 100)} "
            f"| {_number(r['share_of_bytes'], '.1f', 100)} |"
        )
    one = f.get("one_forward_backward_gib")
    if one is not None:
        lines += ["", f"One forward and backward pass of a plain member on as many images: {one:.2f} GiB."]
    return "\n".join([*lines, "", _source(entry), ""])


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "-" if value is None else format(scale * value, form)


def _scaling(entry: Entry) -> str:
    f = entry["figures"]
    lines = [
        f"## Growth on {entry['hardware']}",
        "",
        f"Seconds of one iteration of ARC with G = {f['planes']}, {f['precision']}, ResNet-20 members, nothing fooled. "
        f"Unless the axis says otherwise: M = 2, C = 10, 32 x 32 pixels, {f['images']} images.",
        "",
        "| axis | seconds at size | exponent |",
        "|---|---|---|",
    ]
    for name, found in f["axes"].items():
        if name == "imagenet":
            continue
        label = f"{name} ({max(1, f['images'] // 16)} images)" if name == "image size" else name
        points = ", ".join(f"{size:g}: {took:.3g}" for size, took in found["points"])
        lines.append(f"| {label} | {points} | {_number(found['exponent'], '.2f')} |")
    figure = _plot(entry)
    lines += ["", f"![Growth of the cost](figures/{figure})", "", _source(entry), ""]
    if "imagenet" in f["axes"]:
        lines += _imagenet(entry)
    return "\n".join(lines)


def _training(entry: Entry) -> str:
    f = entry["figures"]
    lines = [
        f"## Training, {f['arch']}, on {entry['hardware']}",
        "",
        f"Adversarial training with PGD-7 at batch {f['batch']}, milliseconds a step and member (fastest-slowest) "
        "against a plain eager loop in PyTorch's default precision in the same run (`benchmarks/train.py`).",
        "",
        "| what | ms | ratio |",
        "|---|---|---|",
        f"| plain loop | {f['plain_ms']:.3g} ({f['plain_spread']}) | - |",
    ]
    rows = {name: row for name, row in f.items() if isinstance(row, dict) and "ms" in row}
    lines += [f"| {name} | {r['ms']:.3g} ({r['spread']}) | {r['ratio']:.1f} |" for name, r in rows.items()]
    if "against_plain" in f:
        (clean, robust, _), *_ = f["accuracy"]["plain loop"]
        said = f"the plain loop has {clean:.1f} % clean and {robust:.1f} % under PGD-20."
        lines += ["", f"After the part of an epoch that the command says, {said}"]
        lines += [f"{name} against it, in points: {told}." for name, told in f["against_plain"].items()]
    return "\n".join([*lines, "", _source(entry), ""])


def _plot(entry: Entry) -> str:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = {name: found for name, found in entry["figures"]["axes"].items() if len(found["points"]) > 1}
    # One scale for all, or a flat curve would look steep.
    figure, panels = plt.subplots(1, len(axes), figsize=(2.6 * len(axes), 2.6), squeeze=False, sharey=True)
    for panel, (name, found) in zip(panels[0], axes.items()):
        sizes, times = zip(*found["points"])
        panel.loglog(sizes, times, "o-", color="#2a6f97")
        panel.set_xticks(sizes, [f"{s:g}" for s in sizes], fontsize=7)
        panel.minorticks_off()
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_title(f"{name}, exponent {found['exponent']:.2f}", fontsize=8)
    every = [took for found in axes.values() for _, took in found["points"]]
    ticks = [m * 10.0**k for k in range(-5, 5) for m in (1, 2, 5) if min(every) / 2 <= m * 10.0**k <= max(every) * 2]
    panels[0][0].set_yticks(ticks, [f"{t:g}" for t in ticks], fontsize=7)
    panels[0][0].set_ylim(min(every) / 1.4, max(every) * 1.4)
    panels[0][0].set_ylabel("seconds an iteration", fontsize=7)
    figure.tight_layout()
    FIGURES.mkdir(parents=True, exist_ok=True)
    kind = "cpu" if "CPU" in entry["hardware"] else "gpu"
    figure.savefig(FIGURES / f"scaling-{kind}.png", dpi=130)
    plt.close(figure)
    return f"scaling-{kind}.png"


def _imagenet(entry: Entry) -> list[str]:
    """The worked estimate: measured seconds an image and iteration, times images and iterations."""
    (count, took), *_ = entry["figures"]["axes"]["imagenet"]["points"]
    each = took / count
    whole = each * IMAGES * STEPS
    return [
        f"### Full ImageNet, worked from {entry['hardware']}",
        "",
        f"Measured: one iteration of ARC (G = 4) on {count:g} images of 224 x 224 with 1000 classes and two ResNet-18s "
        f"takes {took:.3g} s, that is {1000 * each:.3g} ms an image.",
        f"{IMAGES} images x {STEPS} iterations x {1000 * each:.3g} ms = {_duration(whole)} on one device if no sample "
        f"were ever dropped; samples that are fooled by every member leave early, so this is an upper bound.",
        f"Shards are independent and nothing is exchanged but the final records, so eight devices take about "
        f"{_duration(whole / 8)} plus start-up.",
        "",
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
