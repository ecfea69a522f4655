"""Batch norm folded into the convolution before it: the same function with fewer passes over memory."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from recarc.errors import InputError, first_line
from recarc.models.blocks import Normalize

UNFOLDED = "its batch norms cannot be folded (evaluate it unfolded)"


class _Tracer(fx.Tracer):
    """Traces into every module except the normalisation, which checks shapes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Normalize) or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module, consequence: str = UNFOLDED) -> fx.Graph:
    """The graph of operations that the module performs; `consequence` is what an error says of one without.

    A copy is traced, because a forward pass that keeps something in the module would leave symbols in it.
    """
    try:
        return _Tracer().trace(copy.deepcopy(module))
    except Exception as error:  # tracing runs the user's forward on symbols: anything can be raised
        raise InputError(f"{type(module).__name__} cannot be traced, so {consequence}: {first_line(error)}") from None


def fold_batch_norm(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode in which every batch norm directly after a convolution has become part of it.

    Equal to the original in evaluation mode up to rounding. A batch norm that reads anything else (the first of each
    pre-activation block) stays. The copy is for evaluation only: it can be neither saved in an ensemble folder nor
    trained. The module itself is left as it is.
    """
    folded = copy.deepcopy(module).eval()
    for conv_name, norm_name in conv_norm_pairs(folded):
        fused = fuse_conv_bn_eval(folded.get_submodule(conv_name), folded.get_submodule(norm_name))  # type: ignore
        folded.set_submodule(conv_name, fused)
        folded.set_submodule(norm_name, nn.Identity())
    if getattr(folded, "spec", None) is not None:
        folded.spec = None  # type: ignore[assignment]
    return folded


def can_be_copied(module: nn.Module) -> bool:
    """Modules that hold a lock, an open file or a tensor of some graph cannot be; each says so in its own way."""
    try:
        copy.deepcopy(module)
    except Exception:
        return False
    return True


def folds(module: nn.Module) -> bool:
    """Whether it has a batch norm that can be folded."""
    try:
        return any(isinstance(m, nn.BatchNorm2d) for m in module.modules()) and bool(conv_norm_pairs(module))
    except InputError:
        return False


def conv_norm_pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Names (convolution, batch norm) where the norm is the only reader of the convolution and both are used once."""
    graph = trace(module)
    modules = dict(module.named_modules())
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    pairs = []
    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm2d):
            continue
        source: Any = node.args[0] if node.args else None
        norm = modules[node.target]
        if _is_convolution_read_once(source, modules) and norm.running_mean is not None and _is_plain(norm):
            names = (str(source.target), str(node.target))
            if calls[names[0]] == calls[names[1]] == 1:
                pairs.append(names)
    return pairs


def _is_convolution_read_once(source: Any, modules: dict[str, nn.Module]) -> bool:
    return (
        isinstance(source, fx.Node)
        and source.op == "call_module"
        and isinstance(modules[str(source.target)], nn.Conv2d)
        and _is_plain(modules[str(source.target)])
        and len(source.users) == 1
    )


def _is_plain(layer: nn.Module) -> bool:
    """Whether its weight and bias are its own and no hook acts on it, unlike with weight and spectral normalisation."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    return {"weight", "bias"} <= layer._parameters.keys() and not hooked
