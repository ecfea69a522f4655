"""What the benchmarks share: the problem, counted passes, the clock, the machine's ceilings, the results file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc import RandomizedEnsemble

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "speed.json"
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass
class Passes:
    """Images that went through members."""

    forward: int = 0
    backward: int = 0


class Counted(nn.Module):
    """A member that counts the images it is asked for."""

    def __init__(self, member: Callable[[Tensor], Tensor], passes: Passes) -> None:
        super().__init__()
        self.member, self.passes = member, passes

    def forward(self, x: Tensor) -> Tensor:
        self.passes.forward += len(x)
        logits = self.member(x)
        if logits.requires_grad:
            logits.register_hook(lambda _: self._back(len(x)))
        return logits

    def _back(self, count: int) -> None:
        self.passes.backward += count


def counted(ensemble: RandomizedEnsemble) -> tuple[RandomizedEnsemble, Passes]:
    passes = Passes()
    return RandomizedEnsemble([Counted(m, passes) for m in ensemble.members], ensemble.alpha), passes


def images(args: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """`--data`: an .npz with x (uint8 or float, NCHW or NHWC) and y, a named image set, or made-up images."""
    if args.data is None:
        x, y = made_up(args.images)
    elif args.data.endswith(".npz"):
        with np.load(args.data) as file:
            x, y = torch.from_numpy(file["x"][: args.images]), torch.from_numpy(file["y"][: args.images]).long()
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        x = x.permute(0, 3, 1, 2).contiguous() if x.shape[-1] in (1, 3) else x
    else:
        from recarc import data

        x, y = data.load(args.data, "test").limit(args.images).tensors()
    if len(x) < args.images:
        raise SystemExit(f"{args.data} has {len(x)} images, {args.images} were asked for")
    return x.float().to(device), y.to(device)


def made_up(count: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth pattern a class, fainter on some images than others: some give way to 8/255 and some do not."""
    generator = torch.Generator().manual_seed(1234)
    patterns = F.interpolate(torch.randn(classes, 3, 4, 4, generator=generator), size=32, mode="bilinear")
    generator.manual_seed(seed)
    y = torch.randint(classes, (count,), generator=generator)
    strength = 0.01 + 0.09 * torch.rand(count, 1, 1, 1, generator=generator)
    noise = 0.1 * torch.randn(count, 3, 32, 32, generator=generator)
    return (0.5 + strength * patterns[y] + noise).clamp(0, 1), y


def ensemble_of(args: Any, device: torch.device) -> tuple[RandomizedEnsemble, str]:
    """`--ensemble DIR`, or a pair of ResNet-20s trained for a moment on the made-up images, alpha (0.9, 0.1)."""
    if args.ensemble is not None:
        from recarc import load_ensemble

        ensemble, name = load_ensemble(args.ensemble).to(device).eval(), Path(args.ensemble).name
        if args.members is None or args.members == len(ensemble):
            return ensemble, name
        kept = ensemble.alpha[: args.members]
        return RandomizedEnsemble(ensemble.members[: args.members], kept / kept.sum()), f"{name}, first {args.members}"
    members = [_trained(seed, device, args.train_steps) for seed in (0, 1)]
    return RandomizedEnsemble(members, [0.9, 0.1]).eval(), "made-up ResNet-20 pair"


def _trained(seed: int, device: torch.device, steps: int) -> nn.Module:
    from recarc.models.registry import build

    torch.manual_seed(seed)
    net = build("resnet20", classes=10, channels=3, image_size=32).to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = (t.to(device) for t in made_up(128, seed=10_000 * (seed + 1) + step))
        u = (x + 0.02 * torch.randn_like(x).sign()).requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(net(u), y), u)
        loss = F.cross_entropy(net((x + 8 / 255 * g.sign()).clamp(0, 1)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def convolutions_in(device: torch.device) -> str:
    """The precision that convolutions of float32 tensors run in unless somebody changes it."""
    return "tf32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else "float32"


@contextmanager
def full_float32() -> Iterator[None]:
    """No TF32 inside."""
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    wait(device)
    start = time.perf_counter()
    result = work()
    wait(device)
    return time.perf_counter() - start, result


@dataclass
class Ceilings:
    """What the machine does at best: float32 and matrix-unit products, and a copy, measured."""

    flops: dict[str, float]
    bytes: float


def ceilings(device: torch.device) -> Ceilings:
    n, m = (8192, 2**30) if device.type == "cuda" else (1024, 2**25)
    flops = {}
    for precision in ("float32", "tf32", "float16", "bfloat16"):
        if device.type != "cuda" and (precision in ("tf32", "float16") or not _fast_on_cpu(precision)):
            continue
        a = torch.randn(n, n, device=device, dtype=HALVES.get(precision, torch.float32))
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        try:
            flops[precision] = 2 * n**3 / _best(lambda a=a: a @ a, device)
        finally:
            torch.set_float32_matmul_precision(before)
    source = torch.rand(m // 4, device=device)
    target = torch.empty_like(source)
    return Ceilings(flops, 2 * m / _best(lambda: target.copy_(source), device))


def _fast_on_cpu(precision: str) -> bool:
    return precision == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _best(work: Callable[[], Any], device: torch.device) -> float:
    work()
    return min(seconds(work, device)[0] for _ in range(5))


def flops_of(member: nn.Module, x: Tensor) -> float:
    """Floating-point operations of one forward pass of one image; an input gradient takes as many."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        member(x[:2])
    return counter.get_total_flops() / 2


def median(times: list[float]) -> float:
    return statistics.median(times)


def spread(times: list[float]) -> str:
    """The fastest and the slowest."""
    return f"{min(times):.3g}-{max(times):.3g}"


def recorded(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def record(
    what: str, figures: Any, device: torch.device, path: Path, before: list[dict[str, Any]] | None = None
) -> None:
    """Append one entry to the results file, or to the entries `before`: the same run may write itself again."""
    entries = list(recorded(path) if before is None else before)
    entries.append(
        {
            "what": what,
            "figures": figures,
            "command": _command(),
            "commit": commit(),
            "hardware": hardware(device),
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, indent=1) + "\n")


def _command() -> str:
    """As typed, with absolute paths shortened to their last part: they mean nothing on another machine."""
    shown = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *shown])


def commit() -> str:
    if os.environ.get("RECARC_COMMIT"):
        return os.environ["RECARC_COMMIT"]
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} CPU threads ({_cpu_name()}), torch {torch.__version__}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
