"""Does the tight attack meet its floor, and what does it cost?

Claims: (1) on linear ensembles the gap to the exact optimum is at most 0.01; (2) on real ensembles the gap to the floor
is at most 0.5 points; (3) `standard` costs at most 6 x ARC(planes=4) alone. Prints what it measured on this machine
in one run; with --json it is appended to a file.

    python benchmarks/tight.py linear
    python benchmarks/tight.py ensemble DIR --norm linf --eps 8/255 --alpha 0.9,0.1 --json results/tight.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from common import record

from bank import bank
from recarc import ARC, Ball, RandomizedEnsemble, Tight, load_ensemble
from recarc.cli.options import number, numbers
from recarc.data import load
from recarc.exact import optimum


def linear(args: argparse.Namespace) -> dict[str, Any]:
    """200 random linear ensembles (M = 5, D = 20, linf): the mean gaps to the exact optimum."""
    b = bank(200)
    outcome = Tight(args.preset).outcome(b.ensemble, b.x, b.y, b.ball)
    best = torch.cat([optimum(*b.single(k), b.ball).accuracy for k in range(200)])
    found = {name: b.ensemble.score(p == b.y) for name, p in outcome.stages.items()}
    found["tight"] = b.ensemble.expected_accuracy(outcome.mixture[0][1], b.y)
    gaps = {f"gap_of_{name}": round(float((v - best).mean()), 5) for name, v in found.items()}
    return {"optimum": round(float(best.mean()), 5), **gaps}


@dataclass
class Timed:
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def in_batches(work: Any, x: Tensor, y: Tensor, size: int) -> list[Any]:
    return [work(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """AdaptivePGD, ARC, tight and floor of a saved ensemble, and the cost of tight against ARC(planes=4) alone."""
    device = torch.device(args.device)
    rec = load_ensemble(args.folder, device)
    if args.alpha:
        rec = rec.with_alpha(numbers("--alpha", args.alpha))
    x, y = (t.to(device) for t in load(args.data, "test", data_dir=args.data_dir, limit=args.limit).tensors())
    ball = Ball(args.norm, number("--eps", args.eps))
    classes = rec.members[0](x[:1]).shape[1]
    arc = ARC(planes=min(4, classes - 1))
    ARC(steps=1, planes=1)(rec, x[: args.batch], y[: args.batch], ball)  # warm-up
    times: dict[str, list[float]] = {"arc": [], "tight": []}
    for _ in range(args.repeats):
        start = clock(device)
        in_batches(lambda a, b: arc(rec, a, b, ball), x, y, args.batch)
        times["arc"].append(clock(device) - start)
        start = clock(device)
        outcomes = in_batches(lambda a, b: Tight(args.preset).outcome(rec, a, b, ball), x, y, args.batch)
        times["tight"].append(clock(device) - start)
    return {**_figures(rec, x, y, outcomes, args.batch), **_costs(times)}


def _figures(rec: RandomizedEnsemble, x: Tensor, y: Tensor, outcomes: list[Any], batch: int) -> dict[str, Any]:
    stages = {name: torch.cat([o.stages[name] for o in outcomes], 1) for name in outcomes[0].stages}
    x_adv = torch.cat([o.mixture[0][1] for o in outcomes])
    final = torch.cat([rec.expected_accuracy(x_adv[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch)])
    alone = torch.cat([o.alone for o in outcomes], 1)
    floor, tight = float(rec.score(alone).mean()), float(final.mean())
    said = {name: round(100 * float(rec.score(p == y).mean()), 3) for name, p in stages.items()}
    decided = torch.cat([o.decided_by for o in outcomes]).bincount(minlength=len(stages)).tolist()
    return {
        "stages": said,
        "tight": round(100 * tight, 3),
        "floor": round(100 * floor, 3),
        "gap": round(100 * (tight - floor), 3),
        "members_alone": [round(100 * v, 3) for v in alone.double().mean(1).tolist()],
        "decided_by": dict(zip(stages, decided, strict=True)),
    }


def _costs(times: dict[str, list[float]]) -> dict[str, Any]:
    ratios = [t / a for t, a in zip(times["tight"], times["arc"], strict=True)]
    return {
        "seconds_tight": [round(t, 2) for t in times["tight"]],
        "seconds_arc_4_planes": [round(t, 2) for t in times["arc"]],
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_spread": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["linear", "ensemble"])
    parser.add_argument("folder", nargs="?", help="ensemble folder")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--norm", default="linf")
    parser.add_argument("--eps", default="8/255")
    parser.add_argument("--alpha")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", help="what the ensemble is called in the results")
    parser.add_argument("--json", help="append to this file")
    args = parser.parse_args()
    figures = linear(args) if args.what == "linear" else measured(args)
    name = "200 linear ensembles, M = 5, D = 20, linf" if args.what == "linear" else args.name or str(args.folder)
    setting = {} if args.what == "linear" else {"norm": args.norm, "eps": args.eps, "alpha": args.alpha}
    figures = {**setting, "images": args.limit, "preset": args.preset, **figures}
    print(json.dumps({name: figures}, indent=1))
    if args.json:
        record(name, figures, torch.device(args.device), Path(args.json))


if __name__ == "__main__":
    main()
