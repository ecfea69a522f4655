"""Attacks side by side: one process, one run, the same weights and images.

Claim: ARC on 10,000 images and two ResNet-20s takes at most a twentieth of the time of the batch-vectorised Algorithm 2
at its batch size of 256, at the same robust accuracy; PGD on one model takes at most two thirds of the time of other
libraries. Medians over repeats with their spread, warm-up apart; robust accuracy always with the original members in
float32. Other people's code runs as PyTorch comes: on a GPU with convolutions in TF32. Libraries that are not installed
are left out (`--peers DIR` names a folder to find them in).

    python benchmarks/attacks.py --device cuda --images 10000 --steps 20 --json results/speed.json
    python benchmarks/attacks.py --device cpu --images 512 --steps 10 --only arc
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import baseline
import peers
import torch
from common import (
    HALVES,
    Ceilings,
    Passes,
    ceilings,
    convolutions_in,
    counted,
    ensemble_of,
    flops_of,
    full_float32,
    hardware,
    images,
    median,
    record,
    recorded,
    wait,
)
from common import seconds as timed
from torch import Tensor, nn

from recarc import ARC, PGD, AdaptivePGD, Ball, RandomizedEnsemble
from recarc.fast import accelerate
from recarc.attacks import AutoPGD, Tight

GROUPS = ("arc", "adaptive_pgd", "pgd", "tight", "autopgd")
ROWS = "{:<13} {:<32} {:>9} {:>15} {:>7} {:>8} {:>10} {:>10} {:>8} {:>7} {:>7}"
HEADS = ("group", "what", "seconds", "spread", "ratio", "robust %", "forward", "backward", "GiB", "FLOP %", "bytes %")


@dataclass
class Row:
    """One line of the table; `forward` and `backward` count images through members."""

    group: str
    what: str
    seconds: float
    times: list[float]
    ratio: float | None
    robust: float
    forward: int
    backward: int
    memory: float | None
    share_of_flops: float | None
    share_of_bytes: float | None
    precision: str


@dataclass
class Bench:
    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    ball: Ball
    args: argparse.Namespace
    limits: Ceilings
    flops: float
    bytes: float
    deadline: float
    settings: dict[str, Any]
    rows: list[Row]
    made: dict[str, RandomizedEnsemble] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.x.device

    def measure(
        self,
        group: str,
        what: str,
        work: Callable[[RandomizedEnsemble], Tensor],
        ensemble: RandomizedEnsemble | None = None,
        precision: str | None = None,
        repeats: int | None = None,
        warm_up: Callable[[RandomizedEnsemble], Any] | None = None,
    ) -> None:
        """Time `work(ensemble)` and add a row; a failure or a spent budget costs the row, not the run.

        Without `precision` it runs in the one that PyTorch has for convolutions on this device."""
        precision = precision or convolutions_in(self.device)
        if time.monotonic() > self.deadline:
            print(f"  {what}: left out, the time budget is spent", flush=True)
            return
        try:
            attacked, passes = counted(ensemble or self.ensemble)
            print(f"  {group}: {what} ...", end=" ", flush=True)
            memory = self._reset_memory()
            (warm_up or work)(attacked)
            times, x_adv = [], self.x
            for _ in range(repeats or self.args.repeats):
                passes.forward = passes.backward = 0
                took, x_adv = timed(lambda: work(attacked), self.device)
                times.append(took)
            self._add(group, what, times, x_adv, passes, precision, self._peak_since(memory))
            print(f"{median(times):.3g} s", flush=True)
        except Exception as error:  # a fast path that fails on this machine must not hide the others
            print(
                f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}", flush=True
            )

    def _add(
        self, group: str, what: str, times: list[float], x_adv: Tensor, passes: Passes, precision: str, memory: Any
    ) -> None:
        first = next((row for row in self.rows if row.group == group), None)
        took = median(times)
        images_a_second = (passes.forward + passes.backward) / took
        ceiling = self.limits.flops.get(precision)
        width = 2 if precision in HALVES else 4
        counts = passes.forward > 0
        self.rows.append(
            Row(
                group=group,
                what=what,
                seconds=took,
                times=times,
                ratio=None if first is None else first.seconds / took,
                robust=self.robust_accuracy(x_adv, group),
                forward=passes.forward,
                backward=passes.backward,
                memory=memory,
                share_of_flops=images_a_second * self.flops / ceiling if ceiling and counts else None,
                share_of_bytes=images_a_second * self.bytes * width / self.limits.bytes if counts else None,
                precision=precision,
            )
        )

    def robust_accuracy(self, x_adv: Tensor, group: str) -> float:
        """Expected accuracy, or that of member 0 where a single model was attacked, in full float32."""
        judge = RandomizedEnsemble(self.ensemble.members[:1]) if group in ("pgd", "autopgd") else self.ensemble
        with torch.no_grad(), full_float32():
            parts = [judge.expected_accuracy(u, v) for u, v in zip(x_adv.split(2500), self.y.split(2500))]
        outside = float(self.ball.violation(self.x[: len(x_adv)], x_adv).max())
        if outside > 1e-5:
            raise RuntimeError(f"the result is outside the ball by {outside:.2g}")
        return 100 * float(torch.cat(parts).mean())

    def _reset_memory(self) -> int:
        if self.device.type != "cuda":
            return 0
        wait(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def _peak_since(self, before: int) -> float | None:
        if self.device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self.device) - before) / 2**30

    def fast(self, precision: str, single: bool = False) -> RandomizedEnsemble:
        """Made once, so that compiling and capturing is done once; a single model is the first member of it."""
        if precision not in self.made:
            self.made[precision] = accelerate(self.ensemble, precision, **self.settings)
        whole = self.made[precision]
        return RandomizedEnsemble(whole.members[:1]) if single else whole

    def in_batches(self, attack: Callable[..., Tensor], size: int) -> Callable[[RandomizedEnsemble], Tensor]:
        def work(ensemble: RandomizedEnsemble) -> Tensor:
            return torch.cat([attack(ensemble, u, v) for u, v in zip(self.x.split(size), self.y.split(size))])

        return work

    def ours(self, attack: Any) -> Callable[[RandomizedEnsemble], Tensor]:
        return self.in_batches(lambda e, u, v: attack(e, u, v, self.ball), self.args.chunk)


def arc(b: Bench) -> None:
    p, eps, steps = b.ball.norm.p, float(b.ball.eps), b.args.steps
    size = b.args.batch

    def literal(e: RandomizedEnsemble) -> Tensor:
        return b.in_batches(lambda e, u, v: baseline.arc(e.members, e.alpha, u, v, p, eps, steps), size)(e)

    def literal_warm_up(e: RandomizedEnsemble) -> Tensor:
        return baseline.arc(e.members, e.alpha, b.x[:size], b.y[:size], p, eps, 1)

    b.measure("arc", f"Algorithm 2, batch {size}", literal, repeats=b.args.baseline_repeats, warm_up=literal_warm_up)
    for precision in b.args.precisions:
        b.measure("arc", f"ARC {precision}", b.ours(ARC(steps=steps)), b.fast(precision), precision)
    best = b.args.precisions[-1]
    b.measure("arc", f"ARC {best}, 4 planes", b.ours(ARC(steps=steps, planes=4)), b.fast(best), best)

    def readable(e: RandomizedEnsemble) -> Tensor:
        with full_float32():
            return b.ours(ARC(steps=steps))(e)

    def readable_warm_up(e: RandomizedEnsemble) -> Tensor:
        return ARC(steps=1)(e, b.x[:size], b.y[:size], b.ball)

    given = "ARC, members as given"
    b.measure("arc", given, readable, None, "float32", b.args.baseline_repeats, readable_warm_up)


def adaptive_pgd(b: Bench) -> None:
    p, eps, steps = b.ball.norm.p, float(b.ball.eps), b.args.steps
    for size in sorted({b.args.batch, b.args.chunk}):
        loop = b.in_batches(lambda e, u, v: baseline.adaptive_pgd(e.members, e.alpha, u, v, p, eps, steps), size)
        b.measure("adaptive_pgd", f"plain loop, batch {size}", loop, repeats=b.args.baseline_repeats)
    for precision in b.args.precisions:
        b.measure(
            "adaptive_pgd", f"AdaptivePGD {precision}", b.ours(AdaptivePGD(steps=steps)), b.fast(precision), precision
        )


def pgd(b: Bench) -> None:
    eps, steps, size = float(b.ball.eps), b.args.steps, b.args.peer_batch
    for name, attack in peers.pgd(eps, eps / 4, steps):
        b.measure("pgd", f"{name}, batch {size}", b.in_batches(lambda e, u, v, a=attack: a(e.members[0], u, v), size))
    for precision in b.args.precisions:
        b.measure("pgd", f"PGD {precision}", b.ours(PGD(steps=steps)), b.fast(precision, single=True), precision)


def autopgd(b: Bench) -> None:
    eps, steps, size = float(b.ball.eps), b.args.steps, b.args.peer_batch
    for name, attack in peers.autopgd(eps, steps):
        work = b.in_batches(lambda e, u, v, a=attack: a(e.members[0], u, v), size)
        b.measure("autopgd", f"{name}, batch {size}", work)
    for precision in b.args.precisions:
        b.measure(
            "autopgd",
            f"AutoPGD {precision}",
            b.ours(AutoPGD(member=0, steps=steps)),
            b.fast(precision, single=True),
            precision,
        )


def tight(b: Bench) -> None:
    best = b.args.precisions[-1]
    b.measure("tight", f"Tight standard {best}", b.ours(Tight()), b.fast(best), best)


def activations(member: nn.Module, x: Tensor) -> float:
    """Values that one pass of one image must write and read again: the outputs of convolutions and linear layers."""
    total = 0

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel()

    hooks = [m.register_forward_hook(count) for m in member.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        member(x[:2])
    for hook in hooks:
        hook.remove()
    return total / 2


def table(rows: list[Row]) -> Iterator[str]:
    yield ROWS.format(*HEADS)
    for r in rows:
        share = ["-" if s is None else f"{100 * s:.2f}" for s in (r.share_of_flops, r.share_of_bytes)]
        yield ROWS.format(
            r.group,
            r.what,
            f"{r.seconds:.3f}",
            f"{min(r.times):.3f}-{max(r.times):.3f}",
            "1" if r.ratio is None else f"{r.ratio:.2f}",
            f"{r.robust:.2f}",
            r.forward,
            r.backward,
            "-" if r.memory is None else f"{r.memory:.2f}",
            *share,
        )


def one_pass(b: Bench) -> float | None:
    """Peak memory of one forward and backward pass of a plain member on a chunk, GiB."""
    if b.device.type != "cuda":
        return None
    before = b._reset_memory()
    u = b.x[: b.args.chunk].clone().requires_grad_()
    torch.autograd.grad(b.ensemble.members[0](u).sum(), u)  # type: ignore[operator]
    return b._peak_since(before)


def figures(b: Bench, name: str, reference: float | None) -> dict[str, Any]:
    return {
        "ensemble": name,
        "images": len(b.x),
        "steps": b.args.steps,
        "ball": str(b.ball),
        "settings": b.settings,
        "rows": [asdict(row) for row in b.rows],
        "ceilings": asdict(b.limits),
        "flops_of_a_pass": b.flops,
        "one_forward_backward_gib": reference,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ensemble", help="an ensemble folder; without it a pair of ResNet-20s is trained briefly")
    parser.add_argument("--members", type=int, default=None, help="only the first members of the ensemble")
    parser.add_argument("--data", help=".npz with x and y, or the name of an image set; without it made-up images")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10, help="K of every attack")
    parser.add_argument("--norm", default="linf", choices=["linf", "l2"])
    parser.add_argument("--eps", type=float, default=None, help="default 8/255 (linf), 128/255 (l2)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline-repeats", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256, help="batch size of the baseline")
    parser.add_argument("--peer-batch", type=int, default=None, help="batch size of other libraries; default: chunk")
    parser.add_argument("--chunk", type=int, default=None, help="images that our attacks get at once")
    parser.add_argument("--precisions", nargs="+", default=None)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--compile", action="store_true", help="torch.compile the members")
    parser.add_argument("--train-steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--budget", type=float, default=480, help="seconds after which no further row is started")
    parser.add_argument("--peers", default=None, help="folder with other libraries, if not installed")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    cuda = args.device.startswith("cuda")
    args.eps = args.eps or (8 / 255 if args.norm == "linf" else 128 / 255)
    args.precisions = args.precisions or (["tf32", "float16"] if cuda else ["float32"])
    args.chunk = min(args.chunk or 10_000, args.images)
    args.peer_batch = args.peer_batch or args.chunk
    return args


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.peers:
        sys.path.append(args.peers)
    deadline = time.monotonic() + args.budget
    device = torch.device(args.device)
    ensemble, name = ensemble_of(args, device)
    x, y = images(args, device)
    b = Bench(
        ensemble=ensemble,
        x=x,
        y=y,
        ball=Ball(args.norm, args.eps),
        args=args,
        limits=ceilings(device),
        flops=flops_of(ensemble.members[0], x),  # type: ignore[arg-type]
        bytes=2 * activations(ensemble.members[0], x),  # type: ignore[arg-type]
        deadline=deadline,
        settings={"compile": args.compile},
        rows=[],
    )
    print(f"{hardware(device)}; {name}, M = {len(ensemble)}; {len(x)} images, K = {args.steps}, {b.ball}", flush=True)
    reference = one_pass(b)
    groups = {"arc": arc, "adaptive_pgd": adaptive_pgd, "pgd": pgd, "autopgd": autopgd, "tight": tight}
    earlier = recorded(args.json) if args.json is not None else []
    for group in args.only.split(","):
        groups[group](b)
        if args.json is not None:  # after each group, so that a run cut short leaves what it has
            record("attacks", figures(b, name, reference), device, args.json, earlier)
    peak = ", ".join(f"{k} {v / 1e12:.3g} TFLOP/s" for k, v in b.limits.flops.items())
    print(f"\nmembers run with {b.settings}; ceilings: {peak}, {b.limits.bytes / 1e9:.4g} GB/s")
    if reference is not None:
        print(f"one forward and backward pass of a plain member on {args.chunk} images: {reference:.2f} GiB")
    print(f"{hardware(device)}; {name}; {len(x)} images, K = {args.steps}, {b.ball}")
    print("\n".join(table(b.rows)))


if __name__ == "__main__":
    main()
