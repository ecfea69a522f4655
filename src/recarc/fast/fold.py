"""Batch norm folded into the convolutions before it: the same function with fewer passes over memory."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from recarc.errors import InputError
from recarc.models.classifier import Normalize


class _Tracer(fx.Tracer):
    """Sees into every module but the normalisation, which checks shapes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Normalize) or super().is_leaf_module(m, module_qualified_name)


def traced(module: nn.Module) -> fx.Graph:
    """What the module computes, node by node."""
    try:
        return _Tracer().trace(module)
    except Exception as error:  # tracing runs the user's forward on symbols: anything can come out
        raise InputError(
            f"{type(module).__name__} cannot be traced, so its batch norms cannot be folded "
            f"(evaluate it unfolded): {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None


def fold_batch_norm(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode in which every batch norm that directly follows a convolution is part of it.

    Equal to the original in evaluation mode up to rounding. A batch norm that reads anything else (the
    first of each pre-activation block) stays. The copy is for evaluation: it can be neither saved in an
    ensemble folder nor trained like the original. The module itself is not touched.
    """
    folded = copy.deepcopy(module).eval()
    for conv_name, norm_name in conv_norm_pairs(folded):
        fused = fuse_conv_bn_eval(folded.get_submodule(conv_name), folded.get_submodule(norm_name))  # type: ignore
        folded.set_submodule(conv_name, fused)
        folded.set_submodule(norm_name, nn.Identity())
    if getattr(folded, "spec", None) is not None:
        folded.spec = None  # type: ignore[assignment]
    return folded


def conv_norm_pairs(module: nn.Module) -> list[tuple[str, str]]:
    """(convolution, batch norm) names where the norm is the only reader and both are used once."""
    graph = traced(module)
    named = dict(module.named_modules())
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    pairs = []
    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(named[node.target], nn.BatchNorm2d):
            continue
        source: Any = node.args[0] if node.args else None
        if _foldable(source, named) and named[node.target].running_mean is not None:
            names = (str(source.target), str(node.target))
            if calls[names[0]] == calls[names[1]] == 1:
                pairs.append(names)
    return pairs


def _foldable(source: Any, named: dict[str, nn.Module]) -> bool:
    return (
        isinstance(source, fx.Node)
        and source.op == "call_module"
        and isinstance(named[str(source.target)], nn.Conv2d)
        and len(source.users) == 1
    )
