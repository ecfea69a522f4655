"""Random ReLU networks with steep decision boundaries inside the unit cube, and points of a ball to try them on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recarc import Ball


class Residual(nn.Module):
    """Convolution, batch norm, a residual sum, a padded shortcut, both kinds of average pooling."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / 0.25
        z = F.relu(self.bn1(self.conv1(x)))
        z = torch.relu(self.conv2(z) + F.pad(x, (0, 0, 0, 0, 1, 1)))
        z = self.pool(z)
        return self.fc(torch.cat([z.mean(dim=(2, 3)), z[:, :2].flatten(2).mean(2)], dim=1))


def relu_mlp(
    seed: int, dim: int = 6, classes: int = 4, width: int = 12, depth: int = 2, steep: float = 2.0
) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for k in range(depth):
        layers += [nn.Linear(dim if k == 0 else width, width), nn.ReLU()]
    return _prepared(nn.Sequential(*layers, nn.Linear(width, classes)), steep, dim)


def residual(seed: int, classes: int = 4, steep: float = 2.0) -> nn.Module:
    torch.manual_seed(seed)
    net = Residual(classes)
    net.bn1.running_mean.normal_()  # type: ignore[union-attr]
    net.bn1.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    nn.init.normal_(net.bn1.weight)
    return _prepared(net, steep, 2, 4, 4)


def _prepared(net: nn.Module, steep: float, *shape: int) -> nn.Module:
    """Steeper weights, and a last bias with which all classes are about as likely in the cube."""
    net = net.double().eval()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(steep)
        last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
        last.bias -= net(torch.rand(256, *shape, dtype=torch.float64)).mean(0)
    return net


def points_of(ball: Ball, x: Tensor, y: Tensor, net: nn.Module, count: int, seed: int = 0, steps: int = 1) -> Tensor:
    """(count, B, ...) points of the balls around x: random ones, moved along the gradient of the smallest margin."""
    generator = torch.Generator().manual_seed(seed)
    wide = x.repeat(count, *[1] * (x.dim() - 1))
    labels, many = y.repeat(count), Ball(ball.norm, ball.eps, ball.box)
    noise = torch.randn(wide.shape, generator=generator, dtype=wide.dtype)
    delta = many.project(many.norm.scale_to(noise, 2 * many.radius(wide)), wide)
    for _ in range(steps):
        delta.requires_grad_()
        logits = net(wide + delta)
        margin = logits.gather(1, labels[:, None])[:, 0] - logits.scatter(1, labels[:, None], -torch.inf).amax(1)
        (g,) = torch.autograd.grad(margin.sum(), delta)
        move = many.norm.scale_to(many.norm.steepest(g), many.radius(wide))
        keep = torch.rand(len(wide), generator=generator) < 0.5  # the others stay random
        stay = delta.detach()
        delta = torch.where(keep.reshape(-1, *[1] * (x.dim() - 1)), many.project(stay - move, wide), stay)
    return many.move(wide, delta.detach()).reshape(count, *x.shape)
