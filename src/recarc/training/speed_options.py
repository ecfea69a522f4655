"""The device and what is switched on to be fast there; what had to be switched off is said, with the reason."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from recarc.errors import first_line
from recarc.fast.convert import kernel_convolve
from recarc.training.distributed import Group
from recarc.training.method import Method
from recarc.training.shadow_models import foldable


@dataclass(frozen=True)
class Switches:
    """What the user wishes; None: whatever is best on the device."""

    bf16: bool | None = None
    channels_last: bool | None = None
    compile: bool | None = None
    cuda_graph: bool | None = None
    fold: bool | None = None  # batch norm into the convolutions of the attacked copy; needs attack_mode "eval"
    fuse: bool | None = None  # convolutions of the folded copy with bias, shortcut and ReLU in one kernel
    side_by_side: bool | None = None  # independent members trained at the same time


ALONE = Group()


@dataclass
class Machine:
    """What is really used. `notes` tell what was switched off and why."""

    device: torch.device
    group: Group = ALONE
    bf16: bool = False
    channels_last: bool = False
    compile: bool = False
    cuda_graph: bool = False
    fold: bool = False
    fuse: bool = False
    side_by_side: bool = False
    notes: list[str] = field(default_factory=list)

    def off(self, switch: str, reason: str) -> None:
        """Switches something off for good and notes why."""
        setattr(self, switch, False)
        self.notes.append(f"{switch.replace('_', ' ')} is off: {reason}")

    def autocast(self) -> AbstractContextManager[None]:
        # No cache: the half-precision weights are kept by the loop, and a cache would outlive a captured graph.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False)

    def layout(self, x: Tensor) -> Tensor:
        return x.to(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def place(self, model: nn.Module) -> nn.Module:
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]

    def compiled(self, model: nn.Module) -> nn.Module:
        if self.compile:
            try:
                model.compile(dynamic=False)
            except Exception as error:  # this imports the compiler, and with it whatever is installed for it
                self.off("compile", first_line(error))
        return model

    def state(self) -> dict[str, object]:
        """For the provenance."""
        names = ("bf16", "channels_last", "compile", "cuda_graph", "fold", "fuse", "side_by_side")
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return {"device": name, "processes": self.group.world, "on": [n for n in names if getattr(self, n)]}


def machine_for(device: torch.device, group: Group, wishes: Switches) -> Machine:
    """The switches for a device, before the method and architecture are known."""
    cuda = device.type == "cuda"

    def pick(wish: bool | None, default: bool) -> bool:
        return default if wish is None else wish

    machine = Machine(
        device=device,
        group=group,
        bf16=pick(wishes.bf16, cuda),
        channels_last=pick(wishes.channels_last, cuda),
        compile=pick(wishes.compile, False),
        cuda_graph=pick(wishes.cuda_graph, cuda),
        fold=pick(wishes.fold, cuda),
        fuse=pick(wishes.fuse, cuda),
        side_by_side=pick(wishes.side_by_side, cuda),
    )
    if machine.cuda_graph and not cuda:
        machine.off("cuda_graph", f"{device} is not a GPU")
    if machine.cuda_graph and group.world > 1:
        machine.off("cuda_graph", f"{group.world} processes exchange gradients in every step")
    if machine.bf16 and cuda and not torch.cuda.is_bf16_supported():
        machine.off("bf16", "this GPU has no bfloat16")
    return machine


def fit(machine: Machine, method: Method, model: nn.Module, attack_mode: str, wishes: Switches) -> None:
    """Switches off what this method or architecture cannot use."""
    if machine.cuda_graph and not method.capturable:
        machine.off("cuda_graph", f"{method.name} decides in Python during a step")
    if machine.fold:
        why = "the attack runs in training mode (attack_mode 'train')" if attack_mode != "eval" else foldable(model)
        if method.looks_inside:
            why = f"{method.name} looks inside the members it attacks"
        if why is not None and wishes.fold:
            machine.off("fold", why)
        elif why is not None:
            machine.fold = False
    if machine.fuse:
        fusible = machine.fold and machine.bf16 and not machine.compile and machine.device.type == "cuda"
        fusible &= not method.differentiates_twice
        if not fusible and wishes.fuse:
            why = "a folded copy in bfloat16, no compiler, and a method that differentiates no gradients"
            machine.off("fuse", f"it needs a GPU, {why}")
        machine.fuse = fusible  # what nobody asked for goes off without a word
    if machine.fuse and kernel_convolve() is None:
        machine.off("fuse", "Triton cannot build the kernels here")
