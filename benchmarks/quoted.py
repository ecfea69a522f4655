"""The figures that README and the guides quote outside of tables: the demo over seeds, the public DVERGE ensemble.

python benchmarks/quoted.py demo --json results/quoted.json
python benchmarks/quoted.py dverge DIR --json results/quoted.json       # DIR: what `recarc import dverge` made
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import record

from recarc import AdaptivePGD, Ball, evaluate, load_ensemble
from recarc.data import load


def demo(args: argparse.Namespace) -> dict[str, Any]:
    """`recarc demo --seed S` for each seed: what it prints, and how far AdaptivePGD and tight are off."""
    figures = {}
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            words = ["demo", "--seed", str(seed), "--quiet", "--json", "--out", folder]
            told = json.loads(subprocess.run([sys.executable, "-m", "recarc", *words], check=True, stdout=-1).stdout)
        del told["page"]
        figures[f"seed {seed}"] = told
        print(f"seed {seed}: {told}", flush=True)
    return figures


def dverge(args: argparse.Namespace) -> dict[str, Any]:
    """Clean accuracy of each member on the first 1,000 test images, and AdaptivePGD at 8/255 on the first 200."""
    ensemble = load_ensemble(args.folder)
    x, y = load("cifar10", "test", limit=1000).tensors()
    with torch.no_grad():
        clean = [round(100 * float((member(x).argmax(1) == y).double().mean()), 2) for member in ensemble.members]
    result = evaluate(ensemble, AdaptivePGD(), load("cifar10", limit=200), Ball("linf", 8 / 255))
    return {"clean, 1000 images": clean, "AdaptivePGD, 200 images": str(result.robust)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("demo").add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    kinds.add_parser("dverge").add_argument("folder", type=Path)
    for kind in kinds.choices.values():
        kind.add_argument("--json", type=Path, help="append to this file")
    args = parser.parse_args()
    figures = {"demo": demo, "dverge": dverge}[args.what](args)
    print(json.dumps(figures, indent=1))
    if args.json:
        record(args.what, figures, torch.device("cpu"), args.json)


if __name__ == "__main__":
    main()
