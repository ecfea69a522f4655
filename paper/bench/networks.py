"""ARC on networks that nobody tuned it for, beside Algorithm 2 in the same process.

Ratio: to the batch-vectorised Algorithm 2, or a plain loop of adaptive PGD, at its better batch size; the worst rows
come first. The plain loops run with PyTorch's defaults, which on a GPU is TF32; the rows "float32" are float32
throughout, which has no tensor cores, and are compared with a plain loop in float32. Networks with random weights tell
speed only: their labels are the first member's own answers, the second member is the first with a little noise on its
weights, and eps is the median distance to the nearest plane, so that about half of the images withstand and stay to the
end; of trained members most leave early. All iterations of a plain loop cost the same, so two of its 20 are run and the
time is scaled. Ours: the first call, then the median of three later ones with the fastest and the slowest; a row
without a range is a single call. Memory: the peak of all calls, over that of one forward and backward pass of a plain
member.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paper.bench import baseline
from paper.bench.common import counted, measured_row, robust_accuracy, seconds, timing
from paper.recipe import measured_item, radius
from paper.results import Figure, RowResult
from paper.settings import EPS, bat
from paper.setup import Setup
from recarc import ARC, AdaptivePGD, Attack, Ball, RandomizedEnsemble, Tight
from recarc.attacks.nearest_plane import nearest_plane
from recarc.errors import first_line
from recarc.fast import accelerate
from recarc.geometry import Norm
from recarc.models.architectures.resnet18 import ResNet18
from recarc.models.architectures.wrn28_4 import WideResNet
from recarc.models.blocks import PadShortcut
from recarc.models.store import load_ensemble, read_manifest
from recarc.runtime import kernel_settings

IMAGES = {"resnet20": 10_000, "stranger": 10_000, "resnet18": 5000, "wrn28_10": 256, "resnet50": 128, "vit_s": 128}
TRAINED = ("resnet20", "stranger")  # the others have random weights
TIMM = {"resnet50": "resnet50", "vit_s": "vit_small_patch16_224"}
BATCHES = (256, 1024)  # of Algorithm 2
ITERATIONS = 2
STEPS = 20
REPEATS, LONG = 3, 5.0  # later calls of which the median counts; a single one where it takes so many seconds
PRECISIONS = {  # in which they are searched, the third in linf only; not float32, or float16 alone, if it takes minutes
    "resnet20": ("float16", "tf32", "float32"),
    "stranger": ("float16", "tf32", "float32"),
    "resnet18": ("float16", "tf32"),
}
PLANES = {"resnet50": 4, "vit_s": 4}  # of 1,000 classes; otherwise all


class StrangersResNet20(nn.Module):
    """A ResNet-20 as many people write it: 1x1 convolutions as shortcuts, functional ReLUs, sums in place."""

    def __init__(self, ours: Any) -> None:
        """The same function as one of ours: its shortcuts, which pad with zeros, become convolutions that do."""
        super().__init__()
        self.normalise, net = ours.normalize, copy.deepcopy(ours.net)
        self.conv1, self.bn1, self.linear = net.conv1, net.bn1, net.fc
        self.blocks = nn.ModuleList([*net.layer1, *net.layer2, *net.layer3])
        self.shortcuts = nn.ModuleList(_as_convolution(block) for block in self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(self.normalise(x))))
        block: Any
        for block, shortcut in zip(self.blocks, self.shortcuts):
            out = F.relu(block.bn1(block.conv1(x)))
            out = block.bn2(block.conv2(out))
            out += shortcut(x)
            x = F.relu(out)
        x = F.avg_pool2d(x, x.size(3))
        return self.linear(x.view(x.size(0), -1))


def _as_convolution(block: Any) -> nn.Module:
    if not isinstance(block.downsample, PadShortcut):
        return nn.Sequential()
    inputs, outputs, before = block.conv1.in_channels, block.conv1.out_channels, block.downsample.pad[4]
    conv = nn.Conv2d(inputs, outputs, 1, block.downsample.stride, bias=False)
    norm = nn.BatchNorm2d(outputs).eval()
    with torch.no_grad():
        norm.running_var.fill_(1 - norm.eps)  # type: ignore[union-attr]
        conv.weight.zero_()
        conv.weight[torch.arange(inputs) + before, torch.arange(inputs)] = 1
    return nn.Sequential(conv, norm).to(block.conv1.weight.device)


def pair(setup: Setup, name: str, norm: str) -> tuple[RandomizedEnsemble, str]:
    """Two members of this kind on the device, and where they come from: with `--ensemble NAME=DIR`, trained ones."""
    if name in setup.given:
        made_by = read_manifest(Path(setup.given[name])).made_by
        words = f"{made_by.get('method', 'trained')}, {made_by.get('recipe', {}).get('epochs', '?')} epochs"
        return load_ensemble(setup.given[name], setup.device), f"two {name} trained for this ({words})"
    if name in TRAINED:
        loaded = setup.ensemble(bat("cifar10", norm))
        if name == "resnet20":
            return loaded.ensemble, loaded.source
        members = [StrangersResNet20(m).eval() for m in loaded.ensemble.modules_of_members]
        return loaded.ensemble.with_members(members), f"{loaded.source}, as a stranger would write it"
    torch.manual_seed(0)
    if name in TIMM:
        import timm

        net = timm.create_model(TIMM[name], pretrained=False)
    else:
        net = ResNet18(10, 3, "cifar") if name == "resnet18" else WideResNet(10, 3, 28, 10)
    first = _settled(net.to(setup.device), 224 if name in TIMM else 32)
    second = copy.deepcopy(first)
    with torch.no_grad():
        for p in second.parameters():
            p.add_(0.02 * p.std().nan_to_num() * torch.randn_like(p))
    return RandomizedEnsemble([first, second], [0.6, 0.4]), f"two {name} with random weights"


def _settled(net: nn.Module, size: int) -> nn.Module:
    """With batch norms that fit its weights, so that activations neither vanish nor explode."""
    device = next(net.parameters()).device
    with torch.no_grad():
        for _ in range(4):
            net.train()(torch.rand(32, 3, size, size, device=device))
    return net.eval()


class Case:
    """One network in one norm: the images, labels and ball that every row of it shares."""

    def __init__(self, setup: Setup, name: str, norm: str) -> None:
        self.setup, self.norm = setup, norm
        self.ensemble, self.source = pair(setup, name, norm)
        self.part, self.trained = name, name in TRAINED or name in setup.given
        self.name = f"{name} trained" if name in setup.given else name
        count = min(IMAGES[name], setup.limit or IMAGES[name])
        x, y = (t[:count].to(setup.device) for t in setup.images("cifar10").tensors())
        if name in TIMM:
            x = F.interpolate(x, 224)
        self.planes = PLANES.get(name)
        eps = radius(EPS["cifar10", norm])
        if not self.trained:
            first, least = self.ensemble.members[0], []
            y = torch.cat([first(part).argmax(1) for part in x.split(64)])
            for part in x.split(64):
                least.append(nearest_plane(first, part, Norm(norm), label=None, planes=self.planes or 9).zeta)
            eps = float(torch.cat(least).median())
        self.x, self.y, self.ball = x, y, Ball(norm, eps)
        self.steps = setup.scale.steps or STEPS

    def timed(self, work: Callable[[Tensor, Tensor], Tensor], batch: int) -> float:
        parts = list(zip(self.x.split(batch), self.y.split(batch)))
        return seconds(lambda: [work(u, v) for u, v in parts], self.x.device)[0]

    def baseline_seconds(self, algorithm: Callable[..., Tensor], batch: int, planes: int | None) -> float:
        members, alpha, few = self.ensemble.members, self.ensemble.alpha, min(ITERATIONS, self.steps)
        knobs = {} if planes is None else {"planes": planes}
        p, eps = self.ball.norm.p, float(self.ball.eps)

        def work(u: Tensor, v: Tensor, steps: int = few) -> Tensor:
            return algorithm(members, alpha, u, v, p, eps, steps, **knobs)

        work(self.x[:batch], self.y[:batch], 1)  # warm-up
        return self.timed(work, batch) * self.steps / few

    def row(self, name: str, times: list[float], reference: float | None, *more: Figure) -> RowResult:
        took = timing("seconds", times)
        ratio = [] if reference is None else [timing("ratio", [reference / t for t in times], unit="x")]
        figures = [took, *ratio, *more]
        words = "".join(f", {f.column} {f.measured:.3g}" for f in figures[1:])
        self.setup.say(f"{self.name} {self.norm}: {name} {took.measured:.3g} s{words}")
        known: dict[str, Any] = {"norm": self.norm, "eps": f"{float(self.ball.eps):.4g}", "images": len(self.x)}
        known |= {"data": "cifar10", "split": "test", "ensemble": self.source, "note": f"K = {self.steps}"}
        label = f"{self.name} {self.norm}: {name}"
        return measured_row(self.setup, "bench-networks", self.part, label, figures, **known)

    def rows(self) -> Iterator[RowResult]:
        if self.x.is_cuda:
            self.setup.say(f"{self.name}: one forward and backward pass {self.one_pass / 2**30:.2f} GiB")
        yield from self.attack_rows("ARC", ARC(steps=self.steps, planes=self.planes), baseline.arc, self.planes)
        yield from self.attack_rows("AdaptivePGD", AdaptivePGD(steps=self.steps), baseline.adaptive_pgd, None)

    def tight_rows(self) -> Iterator[RowResult]:
        if self.trained and self.x.is_cuda:  # on a CPU it takes minutes
            yield from self.our_rows("Tight", Tight(steps=self.steps), "float16", None)

    def attack_rows(
        self, label: str, attack: Attack, algorithm: Callable[..., Tensor], planes: int | None
    ) -> Iterator[RowResult]:
        """The plain algorithm at each batch size, then ours in each precision: first and later call."""
        plain = {}
        for batch in sorted({min(b, len(self.x)) for b in BATCHES}):
            try:
                plain[batch] = self.baseline_seconds(algorithm, batch, planes)
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
        best = min(plain, key=lambda batch: plain[batch])
        for batch, took in plain.items():
            yield self.row(f"{label}, plain loop, batch {batch}", [took], plain[best])
        precisions = PRECISIONS.get(self.part, ("float16",)) if self.x.is_cuda else ("float32",)
        for precision in precisions if self.norm == "linf" else precisions[:2]:
            reference = plain[best]
            if precision == "float32" and self.x.is_cuda:
                with kernel_settings(self.x.device, tf32=False):
                    reference = self.baseline_seconds(algorithm, best, planes)
                yield self.row(f"{label}, plain loop, batch {best}, float32", [reference], reference)
            yield from self.our_rows(label, attack, precision, reference)

    def our_rows(self, label: str, attack: Attack, precision: str, reference: float | None) -> Iterator[RowResult]:
        first, later, more = self.calls(attack, precision)
        if self.trained and label == "ARC" and precision != "tf32":
            more.insert(0, robust_accuracy(self.ensemble, attack, self.x, self.y, self.ball, precision))
        yield self.row(f"{label} {precision}, first call", [first], reference)
        yield self.row(f"{label} {precision}", later, reference, *more)

    def calls(self, attack: Attack, precision: str) -> tuple[float, list[float], list[Figure]]:
        """Seconds of the first and of later calls on accelerated members, their passes and peak memory."""
        before = self._reset_memory()
        fast, passes = counted(accelerate(self.ensemble, precision))

        def call() -> float:
            return self.timed(lambda u, v: attack(fast, u, v, self.ball), len(self.x))

        first, later = call(), [call()]
        while later[0] < LONG and len(later) < REPEATS:
            later.append(call())
        counts = {"forward": passes.forward, "backward": passes.backward}
        figures = [Figure(name, count / (1 + len(later)), unit="passes") for name, count in counts.items()]
        if self.x.is_cuda:
            figures.append(Figure("memory", (torch.cuda.max_memory_allocated() - before) / self.one_pass, unit="x"))
        return first, later, figures

    def _reset_memory(self) -> int:
        """Bytes in use now; the peak is counted from here."""
        if not self.x.is_cuda:
            return 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    @cached_property
    def one_pass(self) -> int:
        """Peak bytes of one forward and backward pass of a plain member on the batch."""
        before = self._reset_memory()
        u = self.x.clone().requires_grad_()
        torch.autograd.grad(self.ensemble.members[0](u).sum(), u)
        return torch.cuda.max_memory_allocated() - before


@measured_item(
    "bench-networks", "ARC on other people's networks", parts=tuple(IMAGES), page="performance", note=__doc__
)
def networks(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    toy = setup.scale.name == "toy"
    for name in parts[:1] if toy else parts:
        try:
            cases = [Case(setup, name, norm) for norm in (("linf",) if toy else ("linf", "l2"))]
        except ImportError as error:
            setup.say(f"{name}: {first_line(error)}")
            continue
        for case in cases:
            yield from case.rows()
        for case in cases:
            yield from case.tight_rows()
