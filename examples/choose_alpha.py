"""Two models of your own: which sampling probabilities should they have, and does randomizing help at all?

    python examples/choose_alpha.py [--samples 100]

Alpha is chosen on validation data and measured on test data: on the samples it was chosen on it looks too good.
"""

from __future__ import annotations

import argparse

from own_models import digits, train

from recarc import Ball, Climb, RandomizedEnsemble, Tight, evaluate
from recarc.sampling import AttackedSamples, cutting_planes, grid_search, osp, two_members


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    count = parser.parse_args().samples
    x, y = digits()
    members = [train(x[:1200], y[:1200], seed).eval() for seed in range(2)]
    ensemble, ball = RandomizedEnsemble(members), Ball("linf", 0.06)
    validation = AttackedSamples(x[1200 : 1200 + count], y[1200 : 1200 + count], ball)
    test = x[1500 : 1500 + count], y[1500 : 1500 + count]

    print(two_members(ensemble, validation, Tight("quick")).sentence)
    attack = Climb(steps=10, orders=1)
    choices = [
        grid_search(ensemble, validation, points=6),
        osp(ensemble, validation, attack, rounds=5),
        cutting_planes(ensemble, validation, attack, rounds=5),
    ]
    print("method   alpha          believed   on test data")
    for choice in choices:
        shown = ", ".join(f"{a:.2f}" for a in choice.alpha)
        found = evaluate(ensemble.with_alpha(choice.alpha), Tight("quick"), test, ball, progress=False)
        half = (found.robust.high - found.robust.low) / 2
        print(f"{choice.method:<8} {shown:<14} {choice.believed:8.1%}   {found.robust_accuracy:8.1%} +- {half:.1%}")


if __name__ == "__main__":
    main()
