"""ARC inside code written for torchattacks, and torchattacks' attacks inside an evaluation.

python examples/torchattacks_arc.py            (needs torchattacks: pip install --no-deps torchattacks)
"""

from __future__ import annotations

import sys

import torchattacks
from own_models import digits, train

from recarc import ARC, Ball, RandomizedEnsemble, WorstOf, evaluate
from recarc.adapters.torchattacks import stage, wrap


def main(samples: int = 100) -> None:
    x, y = digits()
    models = [train(x[:1400], y[:1400], seed).eval() for seed in range(3)]
    alpha, images, labels, eps = [0.5, 0.3, 0.2], x[-samples:], y[-samples:], 0.1

    # The usual torchattacks loop: only the constructor knows that there are three models.
    ensemble = RandomizedEnsemble(models, alpha)
    attacks = [torchattacks.PGD(models[0], eps=eps, steps=20), wrap(ARC(), models, alpha, eps=eps)]
    print(f"{'clean':<24}{ensemble.expected_accuracy(images, labels).mean():6.1%}")
    for atk in attacks:
        adv_images = atk(images, labels)
        print(f"{atk.attack:<24}{ensemble.expected_accuracy(adv_images, labels).mean():6.1%}")

    # The other way round: attacks of torchattacks as stages, judged like any other.
    stages = [stage("PGD", steps=20), stage("APGD", member=0), ARC()]
    result = evaluate(ensemble, WorstOf(stages), (images, labels), Ball("linf", eps), progress=False)
    print(f"{'worst of PGD, APGD, ARC':<24}{result.robust_accuracy:6.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
