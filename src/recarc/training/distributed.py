"""Several processes under torchrun share one large batch; every process holds the same weights.

Every process draws the random numbers of the whole batch and takes its share, gradients are averaged, and batch norm
uses the statistics of the whole batch: N processes compute what one process computes with the same batch. Only DVERGE
pairs images within the share of a process instead of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recarc.errors import InputError
from recarc.runtime import Ranks, meet, world_size


@dataclass(frozen=True)
class Group(Ranks):
    """The processes of a training run: control messages through `Ranks`, tensors of the device through this class."""

    def share(self, batch: int) -> slice:
        """This process's part of a batch."""
        size = batch // self.world
        return slice(self.rank * size, (self.rank + 1) * size)

    @torch.no_grad()
    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Means over all processes, in place, in one message."""
        if self.world == 1:
            return
        flat = torch.cat([t.reshape(-1).float() for t in tensors])
        dist.all_reduce(flat)
        flat /= self.world
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            tensor.copy_(part.view_as(tensor))

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            dist.all_reduce(value)
        return value

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process raised it; all processes must call this."""
        if self.world == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.int64)
        dist.all_reduce(raised, dist.ReduceOp.MAX, group=self.group)
        return [bool(flag) for flag in raised.tolist()]

    def gather(self, value: Tensor) -> Tensor:
        """The values (n, ...) of all processes as (world * n, ...) in the order of ranks, on the CPU."""
        value = value.detach().cpu().contiguous()
        if self.world == 1:
            return value.clone()
        values = [torch.empty_like(value) for _ in range(self.world)]
        dist.all_gather(values, value, group=self.group)
        return torch.cat(values)


@contextmanager
def training_group(device: torch.device) -> Iterator[Group]:
    """The processes that torchrun started; a group of one outside torchrun.

    Inside, `device` is the current device. Whatever was created or set is undone at the end.
    """
    world = world_size()
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if world == 1:
            yield Group()
            return
        with ExitStack() as stack:
            made_here = not dist.is_initialized()
            if made_here:
                heart = stack.enter_context(meet("nccl" if device.type == "cuda" else "gloo"))
                stack.enter_context(heart.waiting())  # the processes wait for each other in every step
            control = dist.new_group(backend="gloo")
            stack.callback(dist.destroy_process_group, None if made_here else control)
            yield Group(dist.get_rank(), world, control)


def check_batch(batch: int, group: Group) -> None:
    if batch % group.world:
        raise InputError(f"batch {batch} cannot be shared by {group.world} processes; use a multiple of {group.world}")


class _AllSum(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _AllSum.apply(gradients[0])


class SharedBatchNorm(nn.BatchNorm2d):
    """Batch norm over the batches of all processes (on any device; equal shares)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        wide = x.float()
        count = wide.numel() / wide.shape[1] * dist.get_world_size()
        sums = _AllSum.apply(torch.stack([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3))]))
        mean = sums[0] / count
        variance = (sums[1] / count - mean.square()).clamp(min=0)
        if self.track_running_stats:
            with torch.no_grad():
                self._update_running(mean, variance * count / (count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (wide * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]).to(x.dtype)

    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


def share_batch_norm(module: nn.Module) -> None:
    """Make every batch norm in the module use the statistics of the whole batch, in place."""
    for part in module.modules():
        if type(part) is nn.BatchNorm2d and part.affine:
            part.__class__ = SharedBatchNorm
