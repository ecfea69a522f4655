"""Attack in a norm of your own, with a radius of its own for every sample.

    python examples/own_norm.py

Here: the l1.5 ball, and for each digit a radius of 8 % of the norm of its image.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from recarc import ARC, AdaptivePGD, Ball, LinearARC, Norm, RandomizedEnsemble


def linear_member(x: Tensor, y: Tensor, strength: float) -> nn.Linear:
    """scikit-learn's logistic regression as a PyTorch member."""
    fitted = LogisticRegression(C=strength, max_iter=200).fit(x.numpy(), y.numpy())
    member = nn.Linear(64, 10)
    with torch.no_grad():
        member.weight.copy_(torch.from_numpy(fitted.coef_))
        member.bias.copy_(torch.from_numpy(fitted.intercept_))
    return member


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    odd, even = slice(1, 1400, 2), slice(0, 1400, 2)
    members = [linear_member(x[odd], y[odd], 0.01), linear_member(x[even], y[even], 1.0)]
    x, y = x[1400:], y[1400:]

    norm = Norm(1.5)
    ball = Ball(norm, eps=0.08 * norm.norm(x))  # one radius per sample
    ensemble = RandomizedEnsemble(members, alpha=[0.6, 0.4])
    print(f"{norm} ball, radius {ball.eps.min():.2f} to {ball.eps.max():.2f}")
    print(f"{'clean':<16}{ensemble.expected_accuracy(x, y).mean():6.1%}")
    for attack in (AdaptivePGD(), ARC(), ARC(variant="corrected"), LinearARC()):
        x_adv = attack(ensemble, x, y, ball)
        used = norm.norm(x_adv - x) / ball.eps
        name = type(attack).__name__ + (", corrected" if attack == ARC(variant="corrected") else "")
        print(f"{name:<16}{ensemble.expected_accuracy(x_adv, y).mean():6.1%}   at most {used.max():.4f} of the radius")


if __name__ == "__main__":
    main()
