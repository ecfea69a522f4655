"""A small convolutional network for 8x8 digits, MNIST-like sets and tests; it trains in seconds on a CPU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import init_convolutions
from recarc.models.registry import check_count


class SmallCNN(nn.Module):
    """Two 3x3 convolutions (the second with stride 2), perhaps a hidden layer, and a linear head."""

    def __init__(
        self, classes: int, channels: int, image_size: int, width: int, batch_norm: bool, stride: int, hidden: int
    ) -> None:
        super().__init__()
        first = (image_size - 1) // stride + 1
        features = 2 * width * ((first + 1) // 2) ** 2
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1)
        self.bn1 = nn.BatchNorm2d(width) if batch_norm else nn.Identity()
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width) if batch_norm else nn.Identity()
        self.hidden = nn.Linear(features, hidden) if hidden else None
        self.fc = nn.Linear(hidden or features, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x))).flatten(1)
        if self.hidden is not None:
            x = F.relu(self.hidden(x))
        return self.fc(x)


def make(
    classes: int,
    channels: int,
    image_size: int,
    *,
    width: int = 16,
    batch_norm: bool = False,
    stride: int = 1,
    hidden: int = 0,
) -> nn.Module:
    """`width`: channels of the first convolution, the second has twice as many; `stride`: of the first; `hidden`: ReLUs
    of a layer before the head, 0 for none.
    """
    check_count("width", width, 1)
    check_count("stride", stride, 1, 8)
    check_count("hidden", hidden, 0)
    return SmallCNN(classes, channels, image_size, width, batch_norm, stride, hidden)
