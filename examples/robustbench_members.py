"""A randomized ensemble of RobustBench models, with a verdict.

    python examples/robustbench_members.py Wong2020Fast Rice2020Overfitting --samples 1000
    python examples/robustbench_members.py            # two small models of the same form, on digits

RobustBench models are members as they are: modules from images in [0, 1] to logits, with normalisation inside.
"""

from __future__ import annotations

import argparse

from own_models import digits, train
from torch import Tensor, nn

from recarc import Ball, RandomizedEnsemble, Tight, Verdict, evaluate


class Normalised(nn.Module):
    """What a RobustBench model looks like from the outside."""

    def __init__(self, net: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.net, self.mean, self.std = net, mean, std

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)


def small(samples: int) -> tuple[list[nn.Module], tuple[Tensor, Tensor], Ball]:
    """Two models trained on normalised digits, and test images in [0, 1]."""
    x, y = digits()
    nets = [train((x[:1400] - 0.3) / 0.4, y[:1400], seed) for seed in range(2)]
    members = [Normalised(net, 0.3, 0.4).eval() for net in nets]
    return members, (x[1400 : 1400 + samples], y[1400 : 1400 + samples]), Ball("linf", 0.06)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="RobustBench names (CIFAR-10, Linf); downloads their weights")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--preset", default="quick")
    arguments = parser.parse_args()
    if arguments.names:
        from recarc.adapters.members import robustbench
        from recarc.data import load

        members = [robustbench(name) for name in arguments.names]
        data, ball = load("cifar10", limit=arguments.samples), Ball("linf", 8 / 255)
    else:
        members, data, ball = small(arguments.samples)
    result = evaluate(RandomizedEnsemble(members), Tight(arguments.preset), data, ball)
    for i, accuracy in enumerate(result.member_clean):
        print(f"member {i}: clean {accuracy:.1%}, alone under attack {result.alone[i].mean():.1%}")
    print(Verdict.of(result).sentence)


if __name__ == "__main__":
    main()
