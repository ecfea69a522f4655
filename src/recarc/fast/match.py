"""Which operations of a traced network make a block that `recarc.fast.fuse` can run as one function."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

RELUS = (F.relu, torch.relu, "relu", "relu_")
SUMS = (operator.add, operator.iadd, torch.add)
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "setitem")
FEW_CHANNELS = 64  # at most, for our own kernel


def few_channels(conv: nn.Conv2d, most_channels: int) -> bool:
    """Whether our own kernel runs this convolution: few channels, small windows."""
    return max(conv.in_channels, conv.out_channels) <= most_channels and conv.kernel_size in ((1, 1), (3, 3))


@dataclass
class Match:
    """A block in the graph: its convolutions, all the nodes that it replaces (in order), and what it reads."""

    convolutions: list[fx.Node]
    nodes: list[fx.Node]
    source: fx.Node
    other: fx.Node | None = None
    relu: bool = True


@dataclass
class Rules:
    """What may be fused."""

    modules: dict[str, nn.Module]
    most_channels: int
    every: bool

    def convolution(self, node: Any) -> bool:
        """Whether this node is a convolution that a block can run."""
        if not isinstance(node, fx.Node) or node.op != "call_module":
            return False
        conv = self.modules[str(node.target)]
        return (
            isinstance(conv, nn.Conv2d)
            and conv.kernel_size[0] == conv.kernel_size[1]
            and conv.kernel_size[0] % 2 == 1
            and conv.padding == (conv.kernel_size[0] // 2,) * 2
            and conv.padding_mode == "zeros"
            and conv.stride in ((1, 1), (2, 2))
            and conv.dilation == (1, 1)
            and conv.groups == 1
            and (self.every or few_channels(conv, self.most_channels))
            and not has_hooks(conv)
            and len(node.args) == 1
            and isinstance(node.args[0], fx.Node)
        )

    def relu(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self.modules[str(node.target)], nn.ReLU)
        return node.op in ("call_function", "call_method") and node.target in RELUS


def drop_identities(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Folded batch norms and empty shortcuts do nothing; their readers read what they read."""
    for node in list(graph.nodes):
        if node.op == "call_module" and type(modules[str(node.target)]) is nn.Identity and len(node.args) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def find_blocks(graph: fx.Graph, rules: Rules) -> dict[fx.Node, Match]:
    """Blocks by the ReLU that ends them; one that only feeds the next convolution becomes part of the next block."""
    matches: dict[fx.Node, Match] = {}
    for node in graph.nodes:
        match = _block_ending_at(node, rules) if rules.relu(node) else None
        if match is None:
            continue
        before = matches.get(match.source)
        if before is not None and before.other is None and len(match.source.users) == 1:
            del matches[match.source]
            match.convolutions = before.convolutions + match.convolutions
            match.nodes = before.nodes + match.nodes
            match.source = before.source
        matches[node] = match
    return _with_lone_convolutions(graph, matches, rules) if rules.every else matches


def _with_lone_convolutions(graph: fx.Graph, matches: dict[fx.Node, Match], rules: Rules) -> dict[fx.Node, Match]:
    """Also the convolutions that no ReLU follows, such as those of a shortcut; in the order of the graph."""
    taken = {node for match in matches.values() for node in match.nodes}
    for node in graph.nodes:
        if node not in taken and rules.convolution(node):
            lone = Match([node], [node], node.args[0], relu=False)
            if not any(_overwritten(value, lone, rules.modules) for value in (lone.source, node)):
                matches[node] = lone
    return {node: matches[node] for node in graph.nodes if node in matches}


def _block_ending_at(node: fx.Node, rules: Rules) -> Match | None:
    last: Any = node.args[0] if node.args else None
    one: Any
    if not _read_once(last):
        return None
    match = None
    if rules.convolution(last):
        match = Match([last], [last, node], last.args[0])
    elif _is_sum(last):
        for one, other in (last.args, last.args[::-1]):
            if _read_once(one) and rules.convolution(one) and isinstance(other, fx.Node):
                match = Match([one], [one, last, node], one.args[0], other)
                break
    if match is None or any(_overwritten(read, match, rules.modules) for read in (match.source, match.other, node)):
        return None
    return match


def _read_once(node: Any) -> bool:
    return isinstance(node, fx.Node) and len(node.users) == 1


def _is_sum(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in SUMS and len(node.args) == 2 and not node.kwargs


def adds_its_input(match: Match, convolutions: list[nn.Module]) -> bool:
    """Whether the input itself is added, in the shape of the output."""
    same_size = all(conv.stride == (1, 1) for conv in convolutions)
    same_channels = convolutions[0].in_channels == convolutions[-1].out_channels
    return match.other is match.source and same_size and bool(same_channels)


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _overwritten(node: fx.Node | None, match: Match, modules: dict[str, nn.Module]) -> bool:
    """Whether something outside the block changes this value in place: a block reads it later than its parts did."""
    if node is None:
        return False
    outside = [user for user in node.users if user not in match.nodes]
    return any(user.args and user.args[0] is node and _works_in_place(user, modules) for user in outside)


def _works_in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in IN_PLACE or bool(node.kwargs.get("inplace"))
