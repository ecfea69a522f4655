"""Attack a randomized ensemble through Foolbox's own interface.

    python examples/foolbox_attack.py [samples]            (needs recarc[foolbox])

The ensemble becomes a Foolbox model and ARC a Foolbox attack: `attack(fmodel, images, labels, epsilons=[...])` returns
the usual triple, and Foolbox's own attacks run beside it, on the expected logits.
"""

from __future__ import annotations

import sys

import foolbox as fb
from own_models import digits, train

from recarc import ARC
from recarc.adapters.foolbox import EnsembleModel, expected_accuracy, wrap


def main(samples: int = 100) -> None:
    x, y = digits()
    fmodels = [fb.PyTorchModel(train(x[:1400], y[:1400], seed).eval(), bounds=(0, 1)) for seed in range(3)]
    ensemble = EnsembleModel(fmodels, alpha=[0.5, 0.3, 0.2])
    images, labels = x[-samples:], y[-samples:]

    epsilons = [0.03, 0.06, 0.1]
    print(f"{'clean':<8}{expected_accuracy(ensemble, images, labels).mean():7.1%}")
    for name, attack in {"LinfPGD": fb.attacks.LinfPGD(steps=20), "ARC": wrap(ARC(), norm="linf")}.items():
        _, clipped, is_adv = attack(ensemble, images, labels, epsilons=epsilons)
        kept = expected_accuracy(ensemble, clipped, labels).mean(1)
        for eps, value, fooled in zip(epsilons, kept, is_adv.double().mean(1)):
            print(f"{name:<8}eps {eps:<5}expected accuracy {value:6.1%}   is_adv {fooled:6.1%}")
    # is_adv of a Foolbox attack: the mean of the logits is fooled; of ARC: some member that may be drawn is fooled.


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
