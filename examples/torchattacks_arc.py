"""ARC inside code written for torchattacks, and torchattacks' attacks inside an evaluation.

python examples/torchattacks_arc.py            (needs torchattacks: pip install --no-deps torchattacks)
"""

from __future__ import annotations

import sys

import torch
import torchattacks
from own_models import train
from sklearn.datasets import load_digits

import recarc.adapters.torchattacks as randomized
from recarc import ARC, Ball, RandomizedEnsemble, WorstOf, evaluate


def main(samples: int = 100) -> None:
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    models = [train(x[:1400], y[:1400], seed).eval() for seed in range(3)]
    alpha, images, labels, eps = [0.5, 0.3, 0.2], x[-samples:], y[-samples:], 0.1

    # The loop as it stands in torchattacks code: only the constructor knows that there are three models.
    ensemble = RandomizedEnsemble(models, alpha)
    attacks = [torchattacks.PGD(models[0], eps=eps, steps=20), randomized.ARC(models, alpha, eps=eps)]
    print(f"{'clean':<24}{ensemble.expected_accuracy(images, labels).mean():6.1%}")
    for atk in attacks:
        adv_images = atk(images, labels)
        print(f"{atk.attack:<24}{ensemble.expected_accuracy(adv_images, labels).mean():6.1%}")

    # The other way round: their attacks as stages, judged like any other.
    stages = [randomized.stage("PGD", steps=20), randomized.stage("APGD", member=0), ARC()]
    result = evaluate(ensemble, WorstOf(stages), (images, labels), Ball("linf", eps), progress=False)
    print(f"{'worst of PGD, APGD, ARC':<24}{result.robust_accuracy:6.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
