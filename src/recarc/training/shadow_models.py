"""A member in training as each pass sees it: the weights, a half-precision copy, a folded copy to attack."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from recarc.errors import InputError
from recarc.fast.convert import fuse_if_possible
from recarc.fast.fold import conv_norm_pairs, fold_batch_norm
from recarc.fast.fuse import FusedBlock


class ShadowModels:
    """Two models that follow the float32 weights of `master`: `train` for the update, `attack` for the attack.

    What they do not share with the master, `refresh` copies. `fold`, and with it `fuse`, apply to a master that can be
    folded; any other, such as a pretrained member of another architecture, is attacked as it is.
    """

    def __init__(self, master: nn.Module, *, half: bool, attack_mode: str, fold: bool, fuse: bool = False) -> None:
        self.master = master
        self._copied: list[tuple[list[Tensor], list[Tensor]]] = []  # (target, source)
        self._folding: _Folding | None = None
        self.train = self._half_copy(master) if half else master
        if attack_mode == "train":
            self.attack = self.train
        elif fold and foldable(master) is None:
            self._folding = _Folding(master, half, fuse)
            self.attack = self._folding.module
        else:
            self.attack = shared_copy(self.train).eval()

    def weights(self) -> list[Tensor]:
        """The leaves of `train`, in the order of `master.parameters()`."""
        return list(self.train.parameters())

    @torch.no_grad()
    def refresh(self) -> None:
        for target, source in self._copied:
            torch._foreach_copy_(target, source)
        if self._folding is not None:
            self._folding.refresh()

    def _half_copy(self, master: nn.Module) -> nn.Module:
        """Matrices and filters copied to bfloat16; vectors (batch norm, biases) and buffers shared."""
        wide = [p for p in master.parameters() if p.dim() >= 2]
        narrow = [nn.Parameter(p.detach().to(torch.bfloat16), p.requires_grad) for p in wide]
        self._copied.append(([p.data for p in narrow], [p.data for p in wide]))
        return shared_copy(master, dict(zip(map(id, wide), narrow)))


def shared_copy(module: nn.Module, instead: dict[int, nn.Parameter] | None = None) -> nn.Module:
    """A second module on the same parameters and buffers, except those replaced by `instead`."""
    memo: dict[int, object] = {id(t): t for t in (*module.parameters(), *module.buffers())}
    memo.update(instead or {})
    return copy.deepcopy(module, memo)


class _Folding:
    """An evaluation copy with batch norm folded into the convolutions, kept in step with the training weights."""

    def __init__(self, master: nn.Module, half: bool, fuse: bool) -> None:
        pairs = conv_norm_pairs(master)
        self.module = fold_batch_norm(master).requires_grad_(False)
        convs = [_conv(master, conv) for conv, _ in pairs]
        self.weights = [conv.weight.data for conv in convs]
        self.biases = [None if conv.bias is None else conv.bias.data for conv in convs]
        self.norms = [_norm(master, norm) for _, norm in pairs]
        folded = [_conv(self.module, conv) for conv, _ in pairs]
        done = {f"{conv}.{kind}" for conv, _ in pairs for kind in ("weight", "bias")}
        if half:
            _halve(self.module)
        self.folded = [conv.weight.data for conv in folded], [_bias(conv) for conv in folded]
        state, source = self.module.state_dict(keep_vars=True), master.state_dict(keep_vars=True)
        rest = [name for name in state if name not in done]
        self.rest = [state[name].data for name in rest], [source[name].data for name in rest]
        self.runs: list[FusedBlock] = []
        if fuse:
            self.module = fuse_if_possible(self.module, torch.bfloat16)
            self.runs = [m for m in self.module.modules() if isinstance(m, FusedBlock)]

    def refresh(self) -> None:
        """w <- w s and b <- (b - mean) s + beta with s = gamma / sqrt(var + eps)."""
        variances = torch._foreach_add([_running(norm)[1] for norm in self.norms], self.norms[0].eps)
        torch._foreach_sqrt_(variances)
        scales = list(torch._foreach_div([norm.weight.data for norm in self.norms], list(variances)))
        means = [_running(norm)[0] for norm in self.norms]
        shifts = [mean if b is None else mean - b for mean, b in zip(means, self.biases)]
        offsets = torch._foreach_mul(shifts, scales)
        torch._foreach_neg_(offsets)
        torch._foreach_add_(offsets, [norm.bias.data for norm in self.norms])
        filters = [w * s.view(-1, 1, 1, 1) for w, s in zip(self.weights, scales)]
        torch._foreach_copy_(self.folded[0], filters)
        torch._foreach_copy_(self.folded[1], list(offsets))
        if self.rest[0]:
            torch._foreach_copy_(*self.rest)
        for run in self.runs:
            run.refresh()


def foldable(module: nn.Module) -> str | None:
    """None if batch norm can be folded into this architecture, else the reason why not."""
    try:
        pairs = conv_norm_pairs(module)
    except InputError as error:
        return str(error)
    if not pairs:
        return "no batch norm directly after a convolution"
    norms = [_norm(module, norm) for _, norm in pairs]
    if not all(norm.affine and norm.eps == norms[0].eps for norm in norms):
        return "its batch norms differ in kind"
    return None


def frozen_copy(member: nn.Module, half: bool, fold: bool, fuse: bool = False) -> nn.Module:
    """An earlier member to attack: in evaluation mode, without gradients to weights, folded where possible."""
    fold = fold and foldable(member) is None
    fixed = fold_batch_norm(member) if fold else copy.deepcopy(member)
    fixed.requires_grad_(False).eval()
    if half:
        _halve(fixed)
    return fuse_if_possible(fixed, torch.bfloat16) if fold and fuse else fixed


@contextmanager
def without_weight_gradients(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, gradients flow to inputs only."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    try:
        for p in parameters:
            p.requires_grad_(False)
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


@contextmanager
def without_statistics(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, batch norm in training normalises as ever, but leaves its running statistics as they are."""
    parts = {id(part): part for module in modules for part in module.modules()}.values()
    norms = [part for part in parts if isinstance(part, _BatchNorm) and part.track_running_stats]
    try:
        for norm in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def _halve(net: nn.Module) -> None:
    """Convert convolutions and matrices to bfloat16, with their biases."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)


def _conv(module: nn.Module, name: str) -> nn.Conv2d:
    conv = module.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    return conv


def _norm(module: nn.Module, name: str) -> nn.BatchNorm2d:
    norm = module.get_submodule(name)
    assert isinstance(norm, nn.BatchNorm2d)
    return norm


def _running(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias.data
