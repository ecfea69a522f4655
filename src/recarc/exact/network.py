"""A member as a list of steps, affine ones and ReLUs, each of which knows how bounds pass through it."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from recarc.ensemble import Member, check_logits
from recarc.errors import InputError
from recarc.fast.fold import trace
from recarc.models.blocks import Normalize

Function = Callable[..., Tensor]
UNBOUNDED = "no bounds can be computed for it"
AGREE = 1e-3  # of the largest logit: how far the steps in float64 may be from the member itself
PROBE = 2  # samples: a step that mixes them up shows in the shape


@dataclass(frozen=True)
class Step:
    """z = function(inputs), affine in all of them, or ReLU where `function` is None.

    `magnitude` applies the absolute values of the affine map's coefficients to the radii of the inputs. `adjoint` is
    the transposed linear map, where that is known: it saves a pass through the layer.
    """

    name: str
    inputs: tuple[int, ...]  # earlier steps; step 0 is the input of the network
    shape: tuple[int, ...]  # of one sample
    function: Function | None = None
    magnitude: Function | None = None
    elementwise: bool = False  # each value depends on one value of one input; True of ReLUs
    adjoint: Callable[[Tensor, Sequence[int]], Tensor] | None = None  # (R, ...) rows, shape of an input

    @property
    def is_relu(self) -> bool:
        return self.function is None and bool(self.inputs)


class Network:
    """The steps of a module, in the order of execution; weights are read when a step is applied."""

    def __init__(self, module: nn.Module, shape: Sequence[int]) -> None:
        weight = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
        probe = torch.zeros(PROBE, *shape, dtype=weight.dtype, device=weight.device)
        self.steps = [Step("input", (), tuple(shape))]
        builder = _Builder(module, self.steps, probe)
        with torch.no_grad():
            for node in trace(module, UNBOUNDED).nodes:
                builder.add(node)
        if builder.output is None:
            raise InputError("its output does not depend on its input")
        self.output = builder.output

    def logits(self, x: Tensor) -> Tensor:
        """(B, C) outputs, step by step."""
        values = [x]
        for step in self.steps[1:]:
            values.append(F.relu(values[step.inputs[0]]) if step.is_relu else self._apply(step, values))
        return values[self.output]

    def exact_intervals(self) -> set[int]:
        """The steps whose intervals are exact if the input is a box: those with one layer that mixes values before."""
        boxes, exact = {0}, {0}
        for k, step in enumerate(self.steps[1:], 1):
            if step.elementwise and step.inputs[0] in boxes:
                boxes.add(k)
            if step.inputs[0] in (exact if step.elementwise else boxes) and len(step.inputs) == 1:
                exact.add(k)
        return exact

    @staticmethod
    def _apply(step: Step, values: Sequence[Tensor]) -> Tensor:
        assert step.function is not None
        return step.function(*(values[k] for k in step.inputs))

    def transposed(self, k: int, a: Tensor) -> tuple[list[tuple[int, Tensor]], Tensor]:
        """<a, z_k> of an affine step, for a (R, ...), as sum_j <a_j, z_j> + b (R,) over its inputs j."""
        step, record = self.steps[k], torch.is_grad_enabled()
        assert step.function is not None
        if step.adjoint is not None:
            shape = self.steps[step.inputs[0]].shape
            constant = step.function(a.new_zeros(1, *shape))
            return [(step.inputs[0], step.adjoint(a, shape))], (a * constant).flatten(1).sum(1)
        with torch.enable_grad():
            zeros = [a.new_zeros(len(a), *self.steps[j].shape).requires_grad_() for j in step.inputs]
            out = step.function(*zeros)
            gradients = torch.autograd.grad(out, zeros, a, create_graph=record)
        b = (a * (out if record else out.detach())).flatten(1).sum(1)
        return list(zip(step.inputs, gradients, strict=True)), b


def network_of(member: Member, x: Tensor, i: int = 0) -> Network:
    """A copy of member i in float64 and evaluation mode as a network for inputs like x (B, ...).

    Refuses with one line what cannot be bounded: a callable that is no module, a layer without a rule, and a member
    whose answers differ from call to call or from those of its traced graph.
    """
    if not isinstance(member, nn.Module):
        raise InputError(f"member {i} is a {type(member).__name__}; certificates need a torch.nn.Module")
    few = x[:4]
    with torch.no_grad():
        own = next((p.dtype for p in member.parameters() if p.is_floating_point()), few.dtype)
        if own not in (torch.float32, torch.float64):
            kind = str(own).removeprefix("torch.")
            raise InputError(
                f"member {i} computes in {kind}, which rounds too much to be certified; convert it to float32"
            )
        out, again = member(few.to(own)), member(few.to(own))
        check_logits(out, few, i)
        if not torch.equal(out, again):
            raise InputError(f"member {i} is not deterministic: two calls differ; certificates need one function")
        try:
            network = Network(copy.deepcopy(member).double().eval(), few.shape[1:])
            steps = network.logits(few.double())
        except InputError as error:
            raise InputError(f"member {i}: {error}") from None
    out = out.double()
    if float((steps - out).abs().max()) > AGREE * max(1.0, float(out.abs().max())):
        raise InputError(f"member {i} does not compute what its traced graph does; certificates cannot see why")
    return network


class _Builder:
    """Turns the nodes of a traced graph into steps, one after the other, each tried on a probe."""

    def __init__(self, module: nn.Module, steps: list[Step], probe: Tensor) -> None:
        self.module, self.steps = module, steps
        self.values: dict[fx.Node, Any] = {}  # of every node, on the probe
        self.step_of: dict[fx.Node, int] = {}  # of nodes that depend on the input
        self.probe = probe
        self.output: int | None = None

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.values[node], self.step_of[node] = self.probe, 0
        elif node.op == "get_attr":
            self.values[node] = operator.attrgetter(str(node.target))(self.module)
        elif node.op == "output":
            target: Any = node.args[0]
            self.output = self.step_of.get(target) if isinstance(target, fx.Node) else None
        else:
            self._operation(node)

    def _operation(self, node: fx.Node) -> None:
        value = self._call(node, self.values)
        self.values[node] = value
        sources = [n for n in node.all_input_nodes if n in self.step_of]
        if not sources or not isinstance(value, Tensor):  # a constant, or a shape
            return
        if value.dim() < 1 or len(value) != PROBE:
            raise InputError(f"{_name(node, self.module)} mixes samples, so it has no bound rule")
        inputs = tuple(self.step_of[n] for n in sources)
        shape, name = tuple(value.shape[1:]), _name(node, self.module)
        if _is_relu(node, self.module):
            step = Step(name, inputs, shape, elementwise=True)
        else:
            rule = self._affine(node, sources, shape)
            layer = self.module.get_submodule(str(node.target)) if node.op == "call_module" else None
            step = Step(name, inputs, shape, *rule, self._elementwise(node), _adjoint(layer))
        self.steps.append(step)
        self.step_of[node] = len(self.steps) - 1

    def _elementwise(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self.module.get_submodule(str(node.target)), ELEMENTWISE)
        return (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")) in SHAPES

    def _affine(self, node: fx.Node, sources: list[fx.Node], shape: tuple[int, ...]) -> tuple[Function, Function]:
        if node.op == "call_module":
            return _module_rule(self.module.get_submodule(str(node.target)), _name(node, self.module))
        key = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if key in SHAPES:
            return _both(lambda z: z.reshape(len(z), *shape))
        constants = {n: v for n, v in self.values.items() if n in node.all_input_nodes and n not in sources}

        def function(*inputs: Tensor) -> Tensor:
            return self._call(node, {**constants, **dict(zip(sources, inputs, strict=True))})

        def absolute(z: Tensor) -> Tensor:
            sizes = {n: v.abs() if isinstance(v, Tensor) else v for n, v in constants.items()}
            return self._call(node, {**sizes, sources[0]: z})

        if "alpha" in node.kwargs or (key == "getitem" and not _keeps_samples(node.args[1])):
            raise InputError(f"{_name(node, self.module)} has no bound rule with these arguments")
        if key in SUMS or (key in MONOTONE and len(sources) == 1):
            return function, lambda *radii: function(*radii) - function(*(torch.zeros_like(r) for r in radii))
        if key in WEIGHTED and sources == [node.args[0]]:
            return function, lambda r: absolute(r) - absolute(torch.zeros_like(r))
        if key in ("sub", "rsub", "neg"):
            return function, lambda *radii: sum(radii[1:], radii[0]).expand(len(radii[0]), *shape)
        if key in ("mul", "truediv", "div") and len(sources) == 1 and not _divides_by(node, sources[0]):
            return function, lambda r: function(r).abs()  # linear: no constant term
        raise InputError(f"{_name(node, self.module)} has no bound rule; {KNOWN}")

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        if node.op == "call_module":
            return self.module.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return (operator.add if node.target is operator.iadd else node.target)(*args, **kwargs)


KNOWN = "those of linear, convolution, batch norm, ReLU, average pooling, flatten, mean, pad and sum are known"
SHAPES = ("flatten", "view", "reshape", "squeeze", "unsqueeze", "contiguous", "dropout")
SUMS = ("add", "iadd", "cat", "concat")
MONOTONE = ("avg_pool2d", "adaptive_avg_pool2d", "mean", "pad", "getitem")
WEIGHTED = ("linear", "conv2d")
ELEMENTWISE = (_BatchNorm, Normalize, nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten)
RELUS = ("relu", "relu_")


def _is_relu(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.ReLU)
    return (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")) in RELUS


def _keeps_samples(index: Any) -> bool:
    return isinstance(index, tuple) and index[0] in (slice(None), ...)


def _divides_by(node: fx.Node, source: fx.Node) -> bool:
    return "div" in getattr(node.target, "__name__", str(node.target)) and node.args[0] is not source


def _name(node: fx.Node, module: nn.Module) -> str:
    if node.op != "call_module":
        return f"the operation {getattr(node.target, '__name__', node.target)}"
    return f"layer {node.target} ({type(module.get_submodule(str(node.target))).__name__})"


def _both(function: Function) -> tuple[Function, Function]:
    """A rearrangement of values: its own magnitude."""
    return function, function


def _module_rule(layer: nn.Module, name: str) -> tuple[Function, Function]:
    """The affine function of a layer, as in evaluation mode, and its magnitude."""
    if isinstance(layer, nn.Linear):
        return layer, lambda r: F.linear(r, layer.weight.abs())
    if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
        return layer, lambda r: layer._conv_forward(r, layer.weight.abs(), None)
    if isinstance(layer, _BatchNorm) and layer.running_var is not None:
        return lambda z: _batch_norm(layer, z), lambda r: r * _scale(layer, r).abs()
    if isinstance(layer, Normalize):
        return layer, lambda r: r / layer.std
    if isinstance(layer, nn.Identity | nn.Dropout | nn.Dropout2d):
        return _both(lambda z: z)
    if isinstance(layer, nn.Flatten) and layer.start_dim == 1 and layer.end_dim == -1:
        return _both(layer)
    if isinstance(layer, nn.AvgPool2d | nn.AdaptiveAvgPool2d):
        return _both(layer)
    raise InputError(f"{name} has no bound rule; {KNOWN}")


def _adjoint(layer: nn.Module | None) -> Callable[[Tensor, Sequence[int]], Tensor] | None:
    """The transposed map of the layers that cost most."""
    if isinstance(layer, nn.Linear):
        return lambda a, _: F.linear(a, layer.weight.T)
    if isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str):
        args = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return lambda a, shape: torch.nn.grad.conv2d_input((len(a), *shape), layer.weight, a, *args)
    return None


def _batch_norm(layer: _BatchNorm, z: Tensor) -> Tensor:
    return F.batch_norm(z, layer.running_mean, layer.running_var, layer.weight, layer.bias, False, 0.0, layer.eps)


def _scale(layer: _BatchNorm, like: Tensor) -> Tensor:
    assert layer.running_var is not None
    scale = (layer.running_var + layer.eps).rsqrt()
    scale = scale if layer.weight is None else scale * layer.weight
    return scale.reshape(1, -1, *[1] * (like.dim() - 2))


def sizes(network: Network) -> list[int]:
    """How many numbers each step gives for one sample."""
    return [math.prod(step.shape) for step in network.steps]
