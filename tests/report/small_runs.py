"""A small ensemble on digits and its run folders, made once for the tests of the report."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import torch

from recarc import ARC, PGD, AdaptivePGD, Ball, RandomAttacker, RandomizedEnsemble, evaluate
from recarc.attacks import Tight
from recarc.data import load
from recarc.evaluation import RecarcWarning
from recarc.models import build
from recarc.sweep import sweep

SAMPLES, STEPS = 40, 3
SCRIPT = "<script>alert(1)</script>"


@cache
def small_ensemble(members: int = 2) -> RandomizedEnsemble:
    """Linear members, each fitted for a moment on another half of the pixels: accurate, and foolable apart."""
    x, y = load("digits", "train").tensors()
    found = []
    with torch.random.fork_rng(devices=[]):
        for i in range(members):
            torch.manual_seed(i)
            model = build("cnn", 10, 1, 8, width=4)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
            mask = (torch.rand(1, 1, 8, 8) < 0.6).float()
            for _ in range(30):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x * mask), y).backward()
                optimizer.step()
            found.append(model.eval())
    alpha = [0.6, 0.4] if members == 2 else None
    return RandomizedEnsemble(found, alpha)


def make_runs(folder: Path, members: int = 2, sweeps: bool = True) -> Path:
    """tight, adaptive_pgd (with inputs), arc, pgd, and sweeps over alpha and eps, below one folder."""
    ensemble, data, ball = small_ensemble(members), load("digits", "test", limit=SAMPLES), Ball("l2", 0.6)
    attacks = {
        "tight": Tight("quick", steps=STEPS),
        "adaptive_pgd": AdaptivePGD(steps=STEPS),
        "arc": ARC(steps=STEPS, planes=3),
        f"pgd/{SCRIPT}": RandomAttacker(PGD(steps=STEPS)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        for name, attack in attacks.items():
            keep = name in ("tight", "adaptive_pgd")
            evaluate(ensemble, attack, data, ball, out=folder / name, save_inputs=keep, progress=False)
        if sweeps:
            tight = {"tight": Tight("quick", steps=STEPS)}
            part = load("digits", "test", limit=20)
            sweep(ensemble, tight, part, ball, "alpha", [0.5, 0.8, 1.0], folder / "over_alpha", progress=False)
            sweep(ensemble, tight, part, ball, "eps", [0.3, 0.6], folder / "over_eps", progress=False)
    return folder
