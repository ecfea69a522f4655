"""Devices by name, kernel settings and precisions, and processes that agree; with and without a GPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from recarc import runtime
from recarc.errors import InputError, Interrupted
from recarc.runtime import (
    COARSE,
    PRECISIONS,
    Heartbeat,
    Ranks,
    check_precision,
    common_key,
    device_named,
    first_process,
    in_precision,
    joined_ranks,
    kernel_settings,
    out_of_memory,
    use_device,
    without_prefix,
    world_size,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


# Devices -----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend to be on a machine with these devices, as far as the names go."""

    def pretend(gpus: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.delenv("LOCAL_RANK", raising=False)

    return pretend


@pytest.mark.parametrize(
    ("devices", "name", "expected"),
    [
        ({}, "auto", "cpu"),
        ({}, None, "cpu"),
        ({}, "cpu", "cpu"),
        ({"gpus": 2}, "auto", "cuda:0"),
        ({"gpus": 2}, "cuda", "cuda:0"),
        ({"gpus": 2}, "cuda:1", "cuda:1"),
        ({"gpus": 2}, "cpu", "cpu"),
        ({"gpus": 2, "mps": True}, "auto", "cuda:0"),
        ({"mps": True}, "auto", "mps"),
        ({"mps": True}, "mps", "mps"),
        ({"mps": True}, "mps:0", "mps:0"),
    ],
)
def test_devices_by_name(machine: Any, devices: dict[str, Any], name: str | None, expected: str) -> None:
    machine(**devices)
    assert device_named(name) == torch.device(expected)
    assert device_named(torch.device(expected)) == torch.device(expected)


def test_under_torchrun_cuda_is_the_gpu_of_the_process(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    machine(gpus=2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert use_device("auto") == use_device("cuda") == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")] * 2  # set_device wants a device with an index
    assert use_device("cuda:0") == torch.device("cuda:0")


@pytest.mark.parametrize(
    ("devices", "name", "message"),
    [
        ({}, "cuda", "'cuda' is not available here; use cpu or auto"),
        ({}, "mps", "'mps' is not available here; use cpu or auto"),
        ({"gpus": 1}, "mps", "'mps' is not available here; use cpu or auto"),
        ({"gpus": 2}, "cuda:2", "'cuda:2' is not available here; the GPUs are cuda:0 to cuda:1"),
        ({"gpus": 2}, "cuda:first", "'cuda:first' is not available here: "),
        ({"gpus": 2}, "gpu", "unknown device 'gpu'.*known: auto, cpu, cuda, mps"),
        ({"gpus": 2}, "auto:1", "unknown device 'auto:1'"),
    ],
)
def test_devices_that_do_not_exist_are_refused(machine: Any, devices: dict[str, Any], name: str, message: str) -> None:
    machine(**devices)
    with pytest.raises(InputError, match=message) as caught:
        device_named(name)
    assert "\n" not in str(caught.value)


# Kernels -----------------------------------------------------------------------------------------------


def switches() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, torch.get_float32_matmul_precision()


@pytest.mark.parametrize("tf32", [False, True])
def test_kernel_settings_are_restored_even_after_an_error(tf32: bool) -> None:
    """The device only has to be called cuda: the switches exist in every build of torch."""
    before = switches()
    with kernel_settings(CUDA, tf32=tf32, benchmark=True, deterministic=True):
        assert switches() == (tf32, True, True, "high" if tf32 else "highest")
    assert switches() == before
    with pytest.raises(RuntimeError, match="out of memory"), kernel_settings(CUDA, tf32=not tf32, benchmark=True):
        raise RuntimeError("out of memory")
    assert switches() == before


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("no room"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported elsewhere"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_memory_that_runs_out_is_told_from_other_errors(error: RuntimeError) -> None:
    assert out_of_memory(error)
    assert not out_of_memory(RuntimeError("operation not permitted when stream is capturing"))
    with pytest.raises(RuntimeError, match="previous error") as caught:  # as when a capture cannot even be ended
        try:
            raise error
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    assert out_of_memory(caught.value)


def test_kernel_settings_leave_alone_what_they_are_not_asked_for() -> None:
    before = switches()
    with kernel_settings(CUDA):
        assert switches() == before
    with kernel_settings(CUDA, benchmark=True):
        assert switches() == (before[0], True, *before[2:])
    with kernel_settings(CPU, tf32=True, benchmark=True, deterministic=True):
        assert switches() == before


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("precision", ["float32", "tf32", "float64"])
def test_a_precision_sets_the_kernels(precision: str, deterministic: bool) -> None:
    before = switches()
    with kernel_settings(CUDA, deterministic=deterministic):
        with in_precision(precision, CUDA):
            tf32 = precision == "tf32"
            assert switches() == (tf32, False, deterministic, "high" if tf32 else "highest")
        assert switches() == (before[0], before[1], deterministic, before[3])
    assert switches() == before


def test_half_precision_is_autocast() -> None:
    with in_precision("bfloat16", CPU):
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_precisions_are_checked() -> None:
    for precision in PRECISIONS:
        check_precision(precision, CUDA)
        if precision != "float16":
            check_precision(precision, CPU)
    with pytest.raises(
        InputError, match=r"unknown precision 'bfloat61' \(did you mean 'bfloat16'\?\); known: bfloat16"
    ):
        check_precision("bfloat61", CPU)
    with pytest.raises(InputError, match="unknown precision 'float64'"):
        check_precision("float64", CPU, COARSE)
    with pytest.raises(InputError, match="float16 needs a CUDA GPU, the device is mps; use float32 or bfloat16"):
        check_precision("float16", torch.device("mps"))


# Processes ---------------------------------------------------------------------------------------------


def test_alone_outside_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert world_size() == 1 and first_process()
    with joined_ranks() as ranks:
        assert ranks == Ranks() and ranks.first
        assert ranks.agree(lambda: 3) == ranks.together(lambda: 3) == 3
        ranks.wait()
    monkeypatch.setenv("RANK", "1")
    assert not first_process()


SCRIPT = """
from recarc.errors import InputError, RunError
from recarc.runtime import joined_ranks

def refuse(kind, text):
    raise kind(text)

for _ in range(2):  # processes can meet again
    with joined_ranks() as ranks:
        lines = [f"{ranks.rank} of {ranks.world}", ranks.agree(lambda: f"decided by {ranks.rank}")]
        lines.append(str(ranks.together(lambda: 10 * ranks.rank)))
        for call in (
            lambda: ranks.agree(lambda: refuse(InputError, "bad")),
            lambda: ranks.together(lambda: ranks.rank and refuse(RunError, "disk full")),
        ):
            try:
                call()
            except (InputError, RunError) as error:
                lines.append(f"{type(error).__name__}: {error}")
        ranks.wait()
print(" | ".join(lines), flush=True)
"""


def two_ranks(script: str, **more: str) -> list[subprocess.Popen[str]]:
    """Two processes that run this code, as a scheduler without torchrun starts them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", **more}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment["MASTER_PORT"] = str(free.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_two_processes_agree_and_fail_together() -> None:
    processes = two_ranks(SCRIPT)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], [error[-2000:] for _, error in outputs]
    assert [output.strip().splitlines()[-1] for output, _ in outputs] == [
        "0 of 2 | decided by 0 | 0 | InputError: bad | RunError: rank 1: disk full",
        "1 of 2 | decided by 0 | 10 | InputError: bad | RunError: disk full",
    ]


STOPPED = """
import os, signal
from recarc.runtime import joined_ranks

with joined_ranks() as ranks:
    if ranks.first:
        os.kill(os.getpid(), signal.SIGSTOP)
    ranks.wait()
"""


def test_a_stopped_rank_0_is_noticed_although_it_holds_the_store() -> None:
    first, second = two_ranks(STOPPED, RECARC_RANK_TIMEOUT="1")
    try:
        error = second.communicate(timeout=120)[1]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert second.returncode == 3
    assert "[rank 1] interrupted: rank 0 gave no sign of life for 1 s" in error and "Traceback" not in error


# Meeting again, and ranks that fall silent -----------------------------------------------------------------


def met(store: Any, world: int, delays: dict[int, float]) -> list[str]:
    """The keys on which the threads that stand for ranks agree."""

    def arrive(rank: int) -> str:
        time.sleep(delays.get(rank, 0.0))
        return common_key(store, rank, world)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(arrive, range(world)))


def test_nodes_that_were_restarted_a_different_number_of_times_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch prefixes keys with its count of restarts: a node that came back counts from 0, and they hung."""
    monkeypatch.setattr(runtime, "ARRIVED", 5.0)
    store = torch.distributed.HashStore()
    attempts = [torch.distributed.PrefixStore(f"/worker/attempt_{n}", store) for n in (2, 0)]
    with ThreadPoolExecutor(2) as pool:
        keys = list(pool.map(lambda rank: common_key(without_prefix(attempts[rank]), rank, 2), range(2)))
    assert keys[0] == keys[1]


def test_what_ending_processes_still_write_does_not_keep_ranks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "ARRIVED", 5.0)
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(common_key, store, 1, 2)
        store.wait(["recarc hello 1"])
        store.set("recarc hello 1", "old")
        assert pool.submit(common_key, store, 0, 2).result() == second.result()


@pytest.mark.parametrize("late", [0, 2])
def test_restarted_ranks_meet_under_a_key_that_earlier_ones_did_not_use(late: int) -> None:
    """Whoever comes last, what the earlier processes left in the store does not mislead the others."""
    store = torch.distributed.HashStore()
    keys = [met(store, 3, {late: 0.2}) for _ in range(3)]
    assert all(len(set(meeting)) == 1 for meeting in keys)
    assert len({meeting[0] for meeting in keys}) == 3


def test_a_rank_that_does_not_arrive_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "ARRIVED", 0.2)
    store = torch.distributed.HashStore()
    store.set("recarc hello 1", "a process of an earlier attempt")
    with pytest.raises(Interrupted, match="rank 1 did not arrive"):
        common_key(store, 0, 2)


def test_a_silent_rank_is_named_while_others_wait_for_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("RECARC_RANK_TIMEOUT", "0.3")
    exits: list[int] = []
    monkeypatch.setattr(runtime.os, "_exit", exits.append)
    store = torch.distributed.HashStore()
    with Heartbeat(store, 0, 2) as heart:
        with Heartbeat(store, 1, 2), heart.waiting():
            time.sleep(0.6)
        with heart.waiting():
            time.sleep(0.6)  # rank 1 left in good order
        assert exits == []
        store.set("alive 1", "7")  # and is back, but stopped
        time.sleep(0.6)
        assert exits == []  # nobody waits for it
        with heart.waiting():
            time.sleep(0.1)
        assert exits and set(exits) == {3}
    assert "[rank 0] interrupted: rank 1 gave no sign of life" in capsys.readouterr().err
