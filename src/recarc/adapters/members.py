"""What the adapters of models share: lazy imports, preprocessing inside the member, a look at the range of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from recarc.errors import InputError

FAR_OUTSIDE = 0.5  # beyond [0, 1]: no perturbation of an image, but what a second normalisation leads to


def peer(module: str, extra: str) -> Any:
    """The package `module`, or one line that says which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(module, extra, error) from None


def missing(module: str, extra: str, error: ImportError) -> InputError:
    """What to install: the package itself, or what it cannot be imported without."""
    package = module.split(".")[0]
    name = (error.name or package).split(".")[0]
    if name == package or not _installed(package):
        return InputError(f"{package} is not installed: install recarc[{extra}]")
    return InputError(f"{module} cannot be imported without {name}: install recarc[{extra}] or {name} itself")


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # switched off in sys.modules
        return False


class AdaptedMember(nn.Module):
    """Images in [0, 1] -> (resized) -> (x - mean) / std -> the net's logits.

    Inputs far outside [0, 1] are refused: they were normalised before, and would be a second time here.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        resize: int | None = None,
        source: str = "",
    ) -> None:
        super().__init__()
        self.net = net
        self.resize = resize
        self.source = source or type(net).__name__
        self.register_buffer("mean", _per_channel("mean", mean, self.source), persistent=False)
        self.register_buffer("std", _per_channel("std", std, self.source), persistent=False)
        if bool((self.std == 0).any()):
            raise InputError(f"the std of {self.source} is {self.std.flatten().tolist()}; it must not be 0")
        if not _is_identity(self.mean, self.std):
            check_no_second_normalisation(net, self.source)

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}, resize={self.resize}"

    def forward(self, x: Tensor) -> Tensor:
        check_range(x, self.source)
        if self.resize is not None and tuple(x.shape[-2:]) != (self.resize, self.resize):
            x = nn.functional.interpolate(x, (self.resize, self.resize), mode="bilinear", antialias=True)
        out = self.net((x - self.mean) / self.std)
        return getattr(out, "logits", out)


def adapted(net: nn.Module, mean: Any, std: Any, resize: int | None, source: str) -> AdaptedMember:
    """The member in evaluation mode, which is what pretrained models are for."""
    return AdaptedMember(net, mean, std, resize, source).eval()


def check_range(x: Tensor, source: str) -> None:
    """Refuse inputs that are no images in [0, 1]; skipped where values cannot be looked at (compiling, capturing)."""
    if torch.compiler.is_compiling() or not x.numel() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    low, high = (float(v) for v in torch.aminmax(x.detach()))
    if low >= -FAR_OUTSIDE and high <= 1 + FAR_OUTSIDE:
        return
    if low >= 0 and high > 16:
        raise InputError(f"{source} got values up to {high:.4g}; it takes images in [0, 1]: divide 8-bit images by 255")
    raise InputError(
        f"{source} got values in [{low:.4g}, {high:.4g}]; it takes images in [0, 1] and normalises them itself: "
        "do not normalise them before"
    )


def check_no_second_normalisation(net: nn.Module, source: str) -> None:
    """A layer that normalises by a fixed mean and std, below preprocessing that does so too, is a mistake."""
    for name, layer in net.named_modules():
        if _normalises(name, layer):
            raise InputError(
                f"{source} would be normalised twice: its layer {name or type(layer).__name__!r} normalises already; "
                "leave the preprocessing out"
            )


def _normalises(name: str, layer: nn.Module) -> bool:
    """By what such layers are called everywhere: Normalize, NormalizeLayer, ImageNormalizer, ..."""
    words = f"{name.rpartition('.')[2]} {type(layer).__name__}".lower()
    constants = [hasattr(layer, name) for name in ("mean", "means", "mu", "std", "sd", "sigma")]
    return ("normaliz" in words or "normalis" in words) and any(constants)


def _per_channel(name: str, value: float | Sequence[float] | Any, source: str) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float32).detach().cpu().clone()
    if tensor.dim() > 1 and tensor.numel() == max(tensor.shape):
        tensor = tensor.flatten()
    if tensor.dim() > 1 or not bool(torch.isfinite(tensor).all()):
        raise InputError(f"the {name} of {source} has shape {tuple(tensor.shape)}; expected a number or one a channel")
    return tensor if tensor.dim() == 0 else tensor.view(-1, 1, 1)


def _is_identity(mean: Tensor, std: Tensor) -> bool:
    return bool((mean == 0).all()) and bool((std == 1).all())
