"""Attacks side by side: one process, one run, the same weights and images.

Claim: ARC on 10,000 images and two ResNet-20s takes at most a twentieth of the time of the batch-vectorised Algorithm 2
at its batch size of 256, at the same robust accuracy; PGD on one model takes at most two thirds of the time of other
libraries. Medians over repeats with their spread, after a warm-up. Other people's code runs with PyTorch's defaults: on
a GPU with convolutions in TF32. Libraries that are not installed are left out (`--peers DIR` names a folder with them).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from paper.bench import baseline, peers
from paper.bench.common import (
    FOLDER,
    HALVES,
    Passes,
    PeakRates,
    Replay,
    accuracies,
    activations,
    counted,
    flops_of,
    load_images,
    measured_row,
    peak_rates,
    seconds,
    timing,
    write,
)
from paper.recipe import radius
from paper.results import Figure, ItemResult, RowResult, hardware_of
from paper.settings import L2, LINF
from paper.tables import grids
from recarc import ARC, PGD, AdaptivePGD, Attack, AutoPGD, Ball, RandomizedEnsemble, Tight, load_ensemble
from recarc.errors import first_line, unknown
from recarc.fast import accelerate
from recarc.runtime import kernel_settings

BATCH = 256  # of the baselines
CHUNK = 10_000  # images that our attacks and other libraries get at once


@dataclass
class Bench:
    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    ball: Ball
    steps: int
    repeats: int
    precisions: list[str]
    deadline: float
    peak: PeakRates
    flops: float  # of a forward pass of one image
    bytes: float
    known: dict[str, Any]  # provenance of every row
    rows: list[RowResult] = field(default_factory=list)
    accelerated: dict[str, RandomizedEnsemble] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.x.device

    def measure(
        self,
        group: str,
        name: str,
        work: Callable[[RandomizedEnsemble], Tensor],
        ensemble: RandomizedEnsemble | None = None,
        precision: str | None = None,
        attack: Attack | None = None,
        once: bool = False,
        warm_up: Callable[[RandomizedEnsemble], Any] | None = None,
    ) -> None:
        """Time `work(ensemble)` and add a row; a failure or a spent budget costs the row, not the run.

        Without `precision`, PyTorch's default for convolutions on this device is what it runs in. The accuracy is that
        of `attack` under `evaluate`; without one, of the points that `work` returned.
        """
        if time.monotonic() > self.deadline:
            print(f"  {name}: left out, the time budget is spent", file=sys.stderr)
            return
        try:
            attacked, passes = counted(ensemble or self.ensemble)
            memory = self._reset_memory()
            (warm_up or work)(attacked)
            times, points = [], self.x
            for _ in range(1 if once else self.repeats):
                passes.forward = passes.backward = 0
                took, points = seconds(lambda: work(attacked), self.device)
                times.append(took)
            used = self._peak_since(memory)
            figures = self._figures(group, times, passes, precision or self._default_precision(), used)
            judged = RandomizedEnsemble(self.ensemble.members[:1]) if group in SINGLE else self.ensemble
            searched = precision if attack is not None else None
            _, robust = accuracies(judged, attack or Replay(self.x, points), self.x, self.y, self.ball, searched)
            row = f"{group}: {name}"
            self.rows.append(measured_row(row, [*figures, robust], len(self.x), self.device, **self.known))
            print(f"  {row}: {figures[0].measured:.3g} s", file=sys.stderr, flush=True)
        except Exception as error:  # a fast path that fails on this machine must not hide the others
            print(f"  {name} failed: {type(error).__name__}: {first_line(error)}", file=sys.stderr, flush=True)

    def _figures(
        self, group: str, times: list[float], passes: Passes, precision: str, memory: float | None
    ) -> list[Figure]:
        took = timing("seconds", times)
        first = next((row for row in self.rows if row.row.startswith(f"{group}: ")), None)
        reference = took if first is None else first.figures[0]
        figures = [took, Figure("ratio", reference.measured / took.measured, unit="x")]
        if passes.forward:
            rate = (passes.forward + passes.backward) / took.measured
            width = 2 if precision in HALVES else 4
            figures.append(Figure("forward", passes.forward, unit="passes"))
            figures.append(Figure("backward", passes.backward, unit="passes"))
            if precision in self.peak.flops:
                share = 100 * rate * self.flops / self.peak.flops[precision]
                figures.append(Figure("share of FLOP/s", share, unit="share"))
            figures.append(Figure("share of bytes/s", 100 * rate * self.bytes * width / self.peak.bytes, unit="share"))
        return figures if memory is None else [*figures, Figure("GiB", memory, unit="GiB")]

    def _default_precision(self) -> str:
        return "tf32" if self.device.type == "cuda" and torch.backends.cudnn.allow_tf32 else "float32"

    def _reset_memory(self) -> int:
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def _peak_since(self, before: int) -> float | None:
        if self.device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self.device) - before) / 2**30

    def one_pass(self) -> float | None:
        """Peak memory of one forward and backward pass of a plain member on a chunk, in GiB."""
        before = self._reset_memory()
        u = self.x[:CHUNK].clone().requires_grad_()
        torch.autograd.grad(self.ensemble.members[0](u).sum(), u)
        return self._peak_since(before)

    def fast(self, precision: str, single: bool = False) -> RandomizedEnsemble:
        """Made once, so that compiling and capturing happen once; a single model is its first member."""
        if precision not in self.accelerated:
            self.accelerated[precision] = accelerate(self.ensemble, precision)
        whole = self.accelerated[precision]
        return RandomizedEnsemble(whole.members[:1]) if single else whole

    def in_batches(self, attack: Callable[..., Tensor], size: int = CHUNK) -> Callable[[RandomizedEnsemble], Tensor]:
        def work(ensemble: RandomizedEnsemble) -> Tensor:
            return torch.cat([attack(ensemble, u, v) for u, v in zip(self.x.split(size), self.y.split(size))])

        return work

    def ours(self, group: str, attack: Attack, precision: str, suffix: str = "") -> None:
        work = self.in_batches(lambda e, u, v: attack(e, u, v, self.ball))
        name = f"{type(attack).__name__} {precision}{suffix}"
        self.measure(group, name, work, self.fast(precision, group in SINGLE), precision, attack)

    def others(self, group: str, found: Any) -> None:
        for name, attack in found:
            work = self.in_batches(lambda e, u, v, a=attack: a(e.members[0], u, v))
            self.measure(group, f"{name}, batch {min(CHUNK, len(self.x))}", work)


def arc(b: Bench) -> None:
    p, eps = b.ball.norm.p, float(b.ball.eps)

    def literal(e: RandomizedEnsemble, u: Tensor, v: Tensor, steps: int = b.steps) -> Tensor:
        return baseline.arc(e.members, e.alpha, u, v, p, eps, steps)

    def literal_warm_up(e: RandomizedEnsemble) -> Tensor:
        return literal(e, b.x[:BATCH], b.y[:BATCH], 1)

    b.measure("arc", f"Algorithm 2, batch {BATCH}", b.in_batches(literal, BATCH), once=True, warm_up=literal_warm_up)
    for precision in b.precisions:
        b.ours("arc", ARC(steps=b.steps), precision)
    b.ours("arc", ARC(steps=b.steps, planes=4), b.precisions[-1], ", 4 planes")

    def readable(e: RandomizedEnsemble) -> Tensor:
        with kernel_settings(b.device, tf32=False):
            return b.in_batches(lambda e, u, v: ARC(steps=b.steps)(e, u, v, b.ball))(e)

    def readable_warm_up(e: RandomizedEnsemble) -> Tensor:
        return ARC(steps=1)(e, b.x[:BATCH], b.y[:BATCH], b.ball)

    name = "ARC, members as given"
    b.measure("arc", name, readable, None, "float32", ARC(steps=b.steps), once=True, warm_up=readable_warm_up)


def adaptive_pgd(b: Bench) -> None:
    p, eps = b.ball.norm.p, float(b.ball.eps)

    def plain(e: RandomizedEnsemble, u: Tensor, v: Tensor) -> Tensor:
        return baseline.adaptive_pgd(e.members, e.alpha, u, v, p, eps, b.steps)

    for size in sorted({BATCH, min(CHUNK, len(b.x))}):
        b.measure("adaptive_pgd", f"plain loop, batch {size}", b.in_batches(plain, size), once=True)
    for precision in b.precisions:
        b.ours("adaptive_pgd", AdaptivePGD(steps=b.steps), precision)


def pgd(b: Bench) -> None:
    eps = float(b.ball.eps)
    b.others("pgd", peers.pgd(eps, eps / 4, b.steps))
    for precision in b.precisions:
        b.ours("pgd", PGD(steps=b.steps), precision)


def autopgd(b: Bench) -> None:
    b.others("autopgd", peers.autopgd(float(b.ball.eps), b.steps))
    for precision in b.precisions:
        b.ours("autopgd", AutoPGD(member=0, steps=b.steps), precision)


def tight(b: Bench) -> None:
    b.ours("tight", Tight(), b.precisions[-1], ", standard")


GROUPS = {"arc": arc, "tight": tight, "adaptive_pgd": adaptive_pgd, "pgd": pgd, "autopgd": autopgd}
SINGLE = ("pgd", "autopgd")  # attacks on the first member alone


def attacks(
    ensemble: Annotated[str, typer.Option(help="An ensemble folder or zoo:NAME.")] = "zoo:bat-resnet20-linf",
    data: Annotated[str, typer.Option(help="The name of an image set, or made-up.")] = "cifar10",
    images: Annotated[int, typer.Option(help="How many test images.")] = 512,
    steps: Annotated[int, typer.Option(help="K of every attack.")] = 10,
    norm: Annotated[str, typer.Option(help="linf (8/255) or l2 (128/255).")] = "linf",
    only: Annotated[str, typer.Option(help="Groups of rows, separated by commas.")] = ",".join(GROUPS),
    precisions: Annotated[str, typer.Option(help="Of our attacks' search, separated by commas.")] = "",
    repeats: Annotated[int, typer.Option(help="Timed runs of our attacks.")] = 3,
    budget: Annotated[float, typer.Option(help="Seconds after which no further row is started.")] = 480,
    peers_folder: Annotated[Path | None, typer.Option("--peers", help="A folder with other libraries.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda" if torch.cuda.is_available() else "cpu",
    name: Annotated[str, typer.Option(help="The results file: NAME.json, beginning with attacks-.")] = "attacks-here",
    results: Annotated[Path, typer.Option(help="The folder of results files.")] = FOLDER,
) -> None:
    """Time our attacks against the algorithms written the obvious way and against other libraries.

    Example: `python -m paper bench attacks --images 10000 --steps 20 --only arc,tight --name attacks-h200`
    """
    chosen = only.split(",")
    for group in chosen:
        if group not in GROUPS:
            raise unknown("group", group, GROUPS)
    if peers_folder is not None:
        sys.path.append(str(peers_folder))
    where, eps = torch.device(device), {"linf": LINF, "l2": L2}
    if norm not in eps:
        raise unknown("norm", norm, eps)
    loaded = load_ensemble(ensemble, where)
    x, y = load_images(data, images, where)
    member: Any = loaded.members[0]
    known = {"data": data, "split": "test", "norm": norm, "eps": eps[norm], "ensemble": ensemble}
    b = Bench(
        loaded,
        x,
        y,
        Ball(norm, radius(eps[norm])),
        steps=steps,
        repeats=repeats,
        precisions=precisions.split(",")
        if precisions
        else ["tf32", "float16"]
        if where.type == "cuda"
        else ["float32"],
        deadline=time.monotonic() + budget,
        peak=peak_rates(where),
        flops=flops_of(member, x),
        bytes=2 * activations(member, x),
        known=known,
    )
    facts = {
        "steps": steps,
        "peak": asdict(b.peak),
        "flops_of_a_pass": b.flops,
        "one_forward_backward_gib": b.one_pass(),
    }
    print(
        f"{hardware_of(where)}; {ensemble}, M = {len(loaded)}; {len(x)} images, K = {steps}, {b.ball}", file=sys.stderr
    )
    title = f"Side by side: {', '.join(chosen)}"
    for group in chosen:
        GROUPS[group](b)
        write(name, title, b.rows, results, **facts)  # after each group, so that a run cut short leaves what it has
    for grid in grids(ItemResult(name, title, tuple(b.rows))):
        grid.print(title)
