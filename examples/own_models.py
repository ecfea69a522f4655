"""Attack a randomized ensemble of your own PyTorch models.

    python examples/own_models.py

A member is any callable from inputs in [0, 1] to logits; normalisation belongs inside the model.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 digits: images (B, 1, 8, 8) in [0, 1] and labels."""
    data = load_digits()
    return torch.tensor(data.images / 16, dtype=torch.float32)[:, None], torch.tensor(data.target)


def train(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """A small network, trained on the whole batch at once."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(100):
        adam.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        adam.step()
    return net


def main() -> None:
    x, y = digits()
    members = [train(x[:1400], y[:1400], seed) for seed in range(3)]
    x, y = x[1597:], y[1597:]

    ensemble = RandomizedEnsemble(members, alpha=[0.5, 0.3, 0.2])
    ball = Ball("linf", 0.1)
    print(f"{len(ensemble)} members, alpha {ensemble.alpha.tolist()}, {len(x)} digits, {ball}")
    print(f"{'clean':<16}{ensemble.expected_accuracy(x, y).mean():6.1%}")
    attacks = {"AdaptivePGD": AdaptivePGD(), "ARC": ARC(), "ARC, corrected": ARC(variant="corrected")}
    for name, attack in attacks.items():
        x_adv = attack(ensemble, x, y, ball)
        print(f"{name:<16}{ensemble.expected_accuracy(x_adv, y).mean():6.1%}")


if __name__ == "__main__":
    main()
