"""Members that only seem robust, and honest ones beside them: small networks on digits, trained in a second or so.

Every masked member wraps an honest network, so that an attacker who knows the trick finds what the network finds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.data import load


@functools.cache
def digits(split: str) -> tuple[Tensor, Tensor]:
    x, y = load("digits", split).tensors()
    return x, y


class WinnersTakeAll(nn.Module):
    """Keep the largest tenth of a layer's values, set the others to 0 (k-WTA): discontinuous almost everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = flat.topk(max(1, flat.shape[1] // 10), dim=1).values[:, -1:]
        return torch.where(flat >= least, flat, 0.0).reshape(x.shape)


def small_cnn(activation: type[nn.Module] = nn.ReLU, width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        activation(),
        nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
        activation(),
        nn.Flatten(),
        nn.Linear(32 * width, 10),
    )


@functools.cache
def trained(seed: int, adversarial: float = 0.0, winners: bool = False) -> nn.Module:
    """A small CNN with about 95 % on the test images; `adversarial`: linf radius of one-step adversarial training."""
    torch.manual_seed(seed)
    net = small_cnn(WinnersTakeAll if winners else nn.ReLU)
    x, y = digits("train")
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(6):
        for rows in torch.randperm(len(x)).split(64):
            batch = x[rows]
            if adversarial:
                start = (batch + adversarial * (2 * torch.rand_like(batch) - 1)).clamp(0, 1).requires_grad_()
                (gradient,) = torch.autograd.grad(F.cross_entropy(net(start), y[rows]), start)
                moved = start.detach() + 1.25 * adversarial * gradient.sign()
                batch = (batch + (moved - batch).clamp(-adversarial, adversarial)).clamp(0, 1)
            optimizer.zero_grad()
            F.cross_entropy(net(batch), y[rows]).backward()
            optimizer.step()
    return net.eval()


class Masked(nn.Module):
    """A network with something before it or behind it that hides its gradient."""

    def __init__(
        self,
        net: nn.Module,
        before: Callable[[Tensor], Tensor] | None = None,
        after: Callable[..., Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x if self.before is None else self.before(x))
        return out if self.after is None else self.after(out)


class Leaking(nn.Module):
    """Rounded inputs, plus a faint linear path from the pixels to the logits whose gradient is not 0, but useless."""

    def __init__(self, net: nn.Module, rounded: Callable[[Tensor], Tensor], seed: int) -> None:
        super().__init__()
        self.net, self.rounded = net, rounded
        generator = torch.Generator().manual_seed(seed)
        self.leak = nn.Parameter(1e-3 * torch.randn(64, 10, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.rounded(x)) + x.flatten(1) @ self.leak


def eight_levels(x: Tensor) -> Tensor:
    return (7 * x).round() / 7


def jpeg_like(x: Tensor) -> Tensor:
    """The coefficients of an 8 x 8 cosine transform, rounded to multiples of 1/4."""
    k = torch.arange(8, dtype=x.dtype)
    basis = torch.cos(math.pi / 8 * (k[None] + 0.5) * k[:, None]) / 2
    basis[0] /= math.sqrt(2)
    coefficients = (4 * (basis @ x @ basis.T)).round() / 4
    return basis.T @ coefficients @ basis


def saturated(logits: Tensor) -> Tensor:
    """Two ReLUs that are dead wherever a logit is below 0 or above 1."""
    return torch.relu(1 - torch.relu(1 - logits))


class TurnedNearBorders(nn.Module):
    """Honest up to where the two largest logits differ by less than `width`; from there on the gradient points back.

    There the difference is next to nothing, and another one at every point. The answers are the network's own.
    """

    def __init__(self, net: nn.Module, width: float = 1.5, left: float = 0.01) -> None:
        super().__init__()
        self.net, self.width, self.left = net, width, left

    def forward(self, x: Tensor) -> Tensor:
        logits = self.net(x)
        first, second = logits.topk(2, dim=1).values.T[:, :, None]
        winner = F.one_hot(logits.argmax(1), logits.shape[1]).to(logits)
        jitter = self.left * (0.6 + 0.4 * (1e4 * x.detach().flatten(1).sum(1, keepdim=True)).sin())
        inside = logits.detach() - winner * (first - second - jitter).detach() - (logits - logits.detach())
        return torch.where(first - second < self.width, inside, logits - winner * (self.width - self.left))


class Noisy(nn.Module):
    """Noise on the input, drawn anew at every call."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.3 * torch.randn_like(x))


MASKED: dict[str, Callable[[int], nn.Module]] = {
    "softmax(50 f)": lambda seed: Masked(trained(seed), after=lambda f: (50 * f).softmax(1)),
    "8 levels": lambda seed: Masked(trained(seed), before=eight_levels),
    "8 levels, leak": lambda seed: Leaking(trained(seed), eight_levels, seed),
    "ripple": lambda seed: Masked(trained(seed), before=lambda u: u + 0.01 * (1000 * u).sin()),
    "JPEG-like, leak": lambda seed: Leaking(trained(seed), jpeg_like, seed),
    "k-WTA": lambda seed: trained(seed, winners=True),
    "temperature 1e4": lambda seed: Masked(trained(seed), after=lambda f: 1e4 * f),
    "dead ReLU": lambda seed: Masked(trained(seed), after=saturated),
    "turned near borders": lambda seed: TurnedNearBorders(trained(seed)),
    "noise inside": lambda seed: Noisy(trained(seed)),
}
HONEST: dict[str, Callable[[int], nn.Module]] = {
    "plain": lambda seed: trained(seed),
    "adversarially trained": lambda seed: trained(seed, adversarial=0.15),
}
