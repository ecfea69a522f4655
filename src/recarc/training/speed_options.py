"""What makes training fast on a device. What had to be switched off is reported with the reason."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor, nn

from recarc.errors import first_line
from recarc.fast.convert import kernel_convolve
from recarc.training.config import TrainingConfig
from recarc.training.distributed import Group
from recarc.training.method import Method
from recarc.training.shadow_models import foldable


@dataclass(frozen=True)
class SpeedOptions:
    """What the user asks for (None: whatever is best on the device), and later what is really in use."""

    bf16: bool | None = None
    channels_last: bool | None = None
    compile: bool | None = None
    cuda_graph: bool | None = None
    fold: bool | None = None  # batch norm into the convolutions of the attacked copy; needs attack_mode "eval"
    fuse: bool | None = None  # convolutions of the folded copy with bias, shortcut and ReLU in one kernel
    side_by_side: bool | None = None  # independent members trained at the same time

    def resolved(self, device: torch.device) -> SpeedOptions:
        """Undecided options switched on for a GPU, except the compiler, and off elsewhere."""
        undecided = [f.name for f in fields(self) if getattr(self, f.name) is None]
        return replace(self, **{name: device.type == "cuda" and name != "compile" for name in undecided})

    def active(self) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name)]


@dataclass
class Execution:
    """Where and how steps are executed: device, processes, the speed options in use, and why others are off."""

    device: torch.device
    speed: SpeedOptions
    group: Group = field(default_factory=Group)
    notes: list[str] = field(default_factory=list)

    def switch_off(self, option: str, reason: str | None) -> None:
        """Switch an option off for good; without a reason, silently."""
        self.speed = replace(self.speed, **{option: False})
        if reason is not None:
            self.notes.append(f"{option.replace('_', ' ')} is off: {reason}")

    def autocast(self) -> AbstractContextManager[None]:
        # No cache: the loop keeps the half-precision weights itself, and a cache would outlive a captured graph.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.speed.bf16), cache_enabled=False)

    def layout(self, x: Tensor) -> Tensor:
        return x.to(memory_format=torch.channels_last) if self.speed.channels_last and x.dim() == 4 else x

    def place(self, model: nn.Module) -> nn.Module:
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.speed.channels_last else model  # type: ignore[call-overload]

    def compiled(self, model: nn.Module) -> nn.Module:
        if self.speed.compile:
            try:
                model.compile(dynamic=False)
            except Exception as error:  # this imports the compiler, and with it whatever is installed for it
                self.switch_off("compile", first_line(error))
        return model

    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def to_json(self) -> dict[str, object]:
        return {"device": self.device_name(), "processes": self.group.world, "on": self.speed.active()}


def make_execution(config: TrainingConfig, device: torch.device, group: Group, requested: SpeedOptions) -> Execution:
    """The options that device, method and architecture can use; a refused request is noted with its reason."""
    execution = Execution(device, requested.resolved(device), group)
    fit_to_device(execution)
    fit_to_method(execution, requested, config.method, config.fresh_member(0), config.recipe.attack_mode)
    return execution


def fit_to_device(execution: Execution) -> None:
    device, group = execution.device, execution.group
    if execution.speed.cuda_graph and device.type != "cuda":
        execution.switch_off("cuda_graph", f"{device} is not a GPU")
    if execution.speed.cuda_graph and group.world > 1:
        execution.switch_off("cuda_graph", f"{group.world} processes exchange gradients in every step")
    if execution.speed.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        execution.switch_off("bf16", "this GPU does not support bfloat16")


def fit_to_method(
    execution: Execution, requested: SpeedOptions, method: Method, model: nn.Module, attack_mode: str
) -> None:
    if execution.speed.cuda_graph and not method.capturable:
        execution.switch_off("cuda_graph", f"{method.name} makes decisions in Python during a step")
    if execution.speed.bf16 and not method.half_precision:
        execution.switch_off("bf16", f"{method.name} needs float32" if requested.bf16 else None)
    if execution.speed.fold:
        reason = foldable(model)
        if attack_mode != "eval":
            reason = "the attack runs in training mode (attack_mode 'train')"
        if method.reads_features:
            reason = f"{method.name} reads features inside the members it attacks"
        if reason is not None:
            execution.switch_off("fold", reason if requested.fold else None)
    if execution.speed.fuse:
        speed, on_gpu = execution.speed, execution.device.type == "cuda"
        if not (speed.fold and speed.bf16 and on_gpu) or speed.compile or method.differentiates_twice:
            reason = "it needs a GPU, a folded copy in bfloat16, no compiler, and a method without second derivatives"
            execution.switch_off("fuse", reason if requested.fuse else None)
        elif kernel_convolve() is None:
            execution.switch_off("fuse", "Triton cannot build the kernels here")
