"""The whole step, attack and update of every lane, as one CUDA graph: checked against plain execution before use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recarc.errors import first_line
from recarc.training.speed_options import Machine
from recarc.training.stage_trainer import Lane

WARMUP = 3  # steps before capture: libraries choose their algorithms and allocate their workspaces
AGREEMENT = 0.1  # relative difference of the loss and of the weights' movement that rounding may cause


def stepper(lanes: Sequence[Lane], machine: Machine) -> Callable[[], None]:
    """A function that takes one step in every lane; the batches must be loaded before. Leaves the lanes untouched."""
    if machine.compile:
        _rehearse_compiled(lanes, machine)
    if not machine.cuda_graph:
        return lambda: _plain(lanes)
    for draw_inside in (True, False):
        try:
            return _captured(lanes, machine, draw_inside)
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, AttributeError) as error:
            reason = first_line(error)
    machine.off("cuda_graph", f"capture failed ({reason})")
    return lambda: _plain(lanes)


def _plain(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.draw()
        lane.step()


def _captured(lanes: Sequence[Lane], machine: Machine, draw_inside: bool) -> Callable[[], None]:
    graph, entered = torch.cuda.CUDAGraph(), torch.cuda.current_stream(machine.device)
    streams = [torch.cuda.Stream(machine.device) for _ in lanes]
    kept = Snapshot(lanes)
    try:
        main = torch.cuda.Stream(machine.device)
        main.wait_stream(entered)
        with torch.cuda.stream(main):
            for _ in range(WARMUP):
                _fan_out(lanes, streams, draw=True)
        entered.wait_stream(main)
        torch.cuda.synchronize(machine.device)
        kept.restore()
        if draw_inside:
            for lane in lanes:
                graph.register_generator_state(lane.generator)
        with torch.cuda.graph(graph, stream=main):
            _fan_out(lanes, streams, draw=draw_inside)
        torch.cuda.synchronize(machine.device)

        def replay() -> None:
            if not draw_inside:
                for lane in lanes:
                    lane.draw()
            graph.replay()

        _check(lanes, kept, replay)
    except Exception:
        torch.cuda.set_stream(entered)  # a capture that ends with an error leaves its own stream in place
        for lane in lanes:  # a generator left behind by a broken capture would refuse to draw
            lane.generator = torch.Generator(machine.device)
        raise
    finally:
        torch.cuda.synchronize(machine.device)
        kept.restore()
    return replay


def _fan_out(lanes: Sequence[Lane], streams: Sequence[torch.cuda.Stream], draw: bool) -> None:
    """Every lane on a stream of its own, so that small kernels of different members share the GPU."""
    main = torch.cuda.current_stream()
    for lane, stream in zip(lanes, streams):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            if draw:
                lane.draw()
            lane.step()
    for stream in streams:
        main.wait_stream(stream)


def _check(lanes: Sequence[Lane], kept: Snapshot, replay: Callable[[], None]) -> None:
    """A replayed step does what a plain step does from the same state, and draws anew at every replay."""
    kept.restore()
    _plain(lanes)
    expected = [_outcome(lane, before) for lane, before in zip(lanes, kept.before)]
    kept.restore()
    replay()
    found = [_outcome(lane, before) for lane, before in zip(lanes, kept.before)]
    first = [lane.draws.clone() for lane in lanes]
    for (loss, moved), (loss_replayed, moved_replayed) in zip(expected, found):
        near = abs(loss - loss_replayed) <= AGREEMENT * (abs(loss) + 0.1)
        near &= abs(moved - moved_replayed) <= AGREEMENT * moved + 1e-6
        if not near:
            raise RuntimeError(
                f"a replayed step differs from a plain one: loss {loss_replayed:.4f} against {loss:.4f}, "
                f"movement {moved_replayed:.4g} against {moved:.4g}"
            )
    replay()
    if any(bool((lane.draws == old).all()) for lane, old in zip(lanes, first)):
        raise RuntimeError("the random numbers of a replayed step do not change")


def _outcome(lane: Lane, before: dict[str, Tensor]) -> tuple[float, float]:
    """The last loss and how far the weights moved from `before`."""
    loss = float((lane.sums - before["sums"]).sum())
    names = [f"member {i} {name}" for i, m in enumerate(lane.masters) for name, _ in m.named_parameters()]
    now = lane.tensors()
    return loss, float(torch.stack([(now[n] - before[n]).float().square().sum() for n in names]).sum().sqrt())


class Snapshot:
    """The state of lanes, to be put back in place after a rehearsal."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self.before = [{k: t.clone() for k, t in lane.tensors().items()} for lane in lanes]
        self.random = [lane.generator.get_state() for lane in lanes]
        self.host = [lane.host.get_state() for lane in lanes]
        self.default = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self.cpu = torch.get_rng_state()

    def restore(self) -> None:
        for lane, before, random, host in zip(self.lanes, self.before, self.random, self.host):
            for name, tensor in lane.tensors().items():
                tensor.copy_(before[name])
            lane.generator.set_state(random)
            lane.host.set_state(host)
        if self.default:
            torch.cuda.set_rng_state_all(self.default)
        torch.set_rng_state(self.cpu)


def _rehearse_compiled(lanes: Sequence[Lane], machine: Machine) -> None:
    """One step with compiled members; if that fails, uncompiled ones from here on."""
    kept = Snapshot(lanes)
    try:
        _plain(lanes)
    except Exception as error:  # the compiler raises whatever its backends raise
        for lane in lanes:
            for module in lane.modules():
                module._compiled_call_impl = None
        machine.off("compile", first_line(error))
    finally:
        kept.restore()
