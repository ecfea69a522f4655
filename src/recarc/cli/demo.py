"""`recarc demo`: a small ensemble, trained and attacked in a few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from recarc.cli.attacks import attack_named
from recarc.cli.output import print_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from recarc.attacks import Attack
    from recarc.ensemble import RandomizedEnsemble
    from recarc.geometry import Ball

EPS, ALPHA, EPOCHS = 0.12, (0.6, 0.4), 8
ATTACKS = {"PGD-1": "pgd1", "AdaptivePGD": "adaptive_pgd", "ARC": "arc"}


def demo(json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False) -> None:
    """Train two small models on scikit-learn's digits, the second on what fools the first, and attack their mixture.

    Example: `recarc demo`
    """
    import torch

    import recarc
    from recarc.data import load

    torch.set_num_threads(1)  # models this small only wait for each other
    ball = recarc.Ball("linf", EPS)
    x, y = load("digits", "train").tensors()
    ensemble = _trained(x, y, ball)
    test = load("digits", "test")
    runs = {
        title: recarc.evaluate(ensemble, attack_named(name), test, ball, progress=False)
        for title, name in ATTACKS.items()
    }
    clean = next(iter(runs.values())).clean
    rows = {"clean": clean, **{title: run.robust for title, run in runs.items()}}
    if json_:
        worst = min(run.robust_accuracy for run in runs.values())
        told = {title: found.value for title, found in rows.items()}
        print_json({"clean_accuracy": clean.value, "robust_accuracy": worst, "attacks": told})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("attack", "expected accuracy, 95 % interval", title=f"two members, alpha {ALPHA}, linf {EPS}, digits")
    for title, found in rows.items():
        table.add_row(title, str(found))
    Console().print(table)


def _trained(x: Tensor, y: Tensor, ball: Ball) -> RandomizedEnsemble:
    """The first member learns from its own adversarial examples, the second from those of the first (BAT)."""
    import torch

    from recarc.attacks import PGD
    from recarc.ensemble import RandomizedEnsemble
    from recarc.models import build

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = (build("cnn", 10, 1, 8) for _ in range(2))
        attack = PGD(steps=4)
        _fit(first, first, x, y, ball, attack)
        _fit(second, first, x, y, ball, attack)
    return RandomizedEnsemble([first.eval(), second.eval()], list(ALPHA))


def _fit(model: nn.Module, victim: nn.Module, x: Tensor, y: Tensor, ball: Ball, attack: Attack) -> None:
    """Train `model` on the adversarial examples of `victim`."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(128):
            x_adv = attack(victim, x[rows], y[rows], ball)
            loss = torch.nn.functional.cross_entropy(model.train()(x_adv), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
