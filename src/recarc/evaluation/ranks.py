"""Processes that share a run: who does which shard, and how they hear of each other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from recarc.errors import InputError
from recarc.evaluation.faults import RunError

T = TypeVar("T")
PATIENCE = timedelta(days=30)  # ranks finish hours apart; a dead one closes its connection and is noticed at once


@dataclass(frozen=True)
class Ranks:
    """This process among those that `torchrun` started; alone by default."""

    rank: int = 0
    world: int = 1
    group: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, decide: Callable[[], T]) -> T:
        """What rank 0 decides, on every rank; its bad-input and run errors too."""
        if self.world == 1:
            return decide()
        message: list[Any] = [None, None]
        failure: Exception | None = None
        if self.first:
            try:
                message = ["ok", decide()]
            except (InputError, RunError) as error:
                failure = error
                message = [type(error).__name__, str(error)]
        dist.broadcast_object_list(message, src=0, group=self.group)
        if failure is not None:
            raise failure
        if message[0] != "ok":
            raise (InputError if message[0] == "InputError" else RunError)(message[1])
        return message[1]

    def together(self, work: Callable[[], T]) -> T:
        """What each rank gets for itself; where one fails on bad input or a run error, all of them do."""
        if self.world == 1:
            return work()
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except (InputError, RunError) as error:
            failure = error
        told: list[Any] = [None] * self.world
        dist.all_gather_object(told, failure and (type(failure).__name__, str(failure)), group=self.group)
        if failure is not None:
            raise failure
        for rank, other in enumerate(told):
            if other is not None:
                raise (InputError if other[0] == "InputError" else RunError)(f"rank {rank}: {other[1]}")
        return result

    def wait(self) -> None:
        """Until every rank is here."""
        if self.world > 1:
            dist.barrier(group=self.group)


_meetings = itertools.count()


def meet(backend: str, timeout: timedelta | None = None) -> None:
    """A process group of all that torchrun started, at a place of its own: torch's place still has the old addresses
    when processes meet a second time."""
    store, rank, world = next(iter(dist.rendezvous("env://")))
    place = dist.PrefixStore(f"recarc {next(_meetings)}", store)
    dist.init_process_group(backend, store=place, rank=rank, world_size=world, timeout=timeout)


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """The processes that torchrun's environment names, connected for control messages only (gloo, on any device)."""
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() == 1:
            yield Ranks()
            return
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size(), group)
        finally:
            dist.destroy_process_group(group)
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    meet("gloo", PATIENCE)
    try:
        yield Ranks(dist.get_rank(), world, None)
    finally:
        dist.destroy_process_group()
