"""A whole step, attack and update of every trainer, as one CUDA graph: checked against eager execution before use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from recarc.errors import first_line
from recarc.training.speed_options import Execution
from recarc.training.stage_trainer import StageTrainer
from recarc.training.streams import side_by_side

WARMUP = 3  # steps before capture: libraries choose their algorithms and allocate their workspaces
AGREEMENT = 0.1  # relative difference in the loss and in the movement of the weights that rounding may cause


def step_function(trainers: Sequence[StageTrainer], execution: Execution) -> Callable[[], None]:
    """A function that takes one step in every trainer, once their batches are loaded. Leaves their state untouched."""
    if execution.speed.compile:
        _try_compiled(trainers, execution)
    if not execution.speed.cuda_graph:
        return lambda: _eager_step(trainers)
    for draw_inside in (True, False):
        try:
            return _captured(trainers, execution, draw_inside)
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, AttributeError) as error:
            reason = first_line(error)
    execution.switch_off("cuda_graph", f"capture failed ({reason})")
    return lambda: _eager_step(trainers)


def _eager_step(trainers: Sequence[StageTrainer]) -> None:
    for trainer in trainers:
        trainer.draw()
        trainer.step()


def _captured(trainers: Sequence[StageTrainer], execution: Execution, draw_inside: bool) -> Callable[[], None]:
    graph, original = torch.cuda.CUDAGraph(), torch.cuda.current_stream(execution.device)
    snapshot = Snapshot(trainers)
    try:
        main = torch.cuda.Stream(execution.device)
        main.wait_stream(original)
        with torch.cuda.stream(main):
            for _ in range(WARMUP):
                _step_on_streams(trainers, draw=True)
        original.wait_stream(main)
        torch.cuda.synchronize(execution.device)
        snapshot.restore()
        if draw_inside:
            for trainer in trainers:
                graph.register_generator_state(trainer.generator)
        with torch.cuda.graph(graph, stream=main):
            _step_on_streams(trainers, draw=draw_inside)
        torch.cuda.synchronize(execution.device)

        def replay() -> None:
            if not draw_inside:
                for trainer in trainers:
                    trainer.draw()
            graph.replay()

        _check(trainers, snapshot, replay)
        torch.cuda.empty_cache()  # what eager steps and the choice of algorithms took; others may share the GPU
    except Exception:
        torch.cuda.set_stream(original)  # a failed capture leaves its own stream in place
        for trainer in trainers:  # a generator registered with a failed capture would refuse to draw
            trainer.generator = torch.Generator(execution.device)
        raise
    finally:
        torch.cuda.synchronize(execution.device)
        snapshot.restore()
    return replay


def _step_on_streams(trainers: Sequence[StageTrainer], draw: bool) -> None:
    """Step every trainer on its own stream, so that small kernels of different members share the GPU."""

    def step(trainer: StageTrainer) -> None:
        if draw:
            trainer.draw()
        trainer.step()

    side_by_side([partial(step, trainer) for trainer in trainers], trainers[0].execution.device)


def _check(trainers: Sequence[StageTrainer], snapshot: Snapshot, replay: Callable[[], None]) -> None:
    """Raise unless a replayed step does what an eager step does from the same state, with new random numbers."""
    snapshot.restore()
    _eager_step(trainers)
    expected = [_effect(trainer, before) for trainer, before in zip(trainers, snapshot.before)]
    snapshot.restore()
    replay()
    replayed = [_effect(trainer, before) for trainer, before in zip(trainers, snapshot.before)]
    first = [trainer.draws.clone() for trainer in trainers]
    for (loss, moved), (loss_replayed, moved_replayed) in zip(expected, replayed):
        near = abs(loss - loss_replayed) <= AGREEMENT * (abs(loss) + 0.1)
        near &= abs(moved - moved_replayed) <= AGREEMENT * moved + 1e-6
        if not near:
            raise RuntimeError(
                f"a replayed step differs from an eager one: loss {loss_replayed:.4f} against {loss:.4f}, "
                f"movement {moved_replayed:.4g} against {moved:.4g}"
            )
    replay()
    if any(bool((trainer.draws == old).all()) for trainer, old in zip(trainers, first)):
        raise RuntimeError("the random numbers of a replayed step do not change")


def _effect(trainer: StageTrainer, before: dict[str, Tensor]) -> tuple[float, float]:
    """The loss of the last step, and how far the weights moved from `before`."""
    loss = float((trainer.sums - before["sums"]).sum())
    names = [f"member {i} {name}" for i, m in enumerate(trainer.masters) for name, _ in m.named_parameters()]
    now = trainer.tensors()
    return loss, float(torch.stack([(now[n] - before[n]).float().square().sum() for n in names]).sum().sqrt())


class Snapshot:
    """The state of trainers, to be restored in place after a trial step."""

    def __init__(self, trainers: Sequence[StageTrainer]) -> None:
        self.trainers = trainers
        self.before = [{k: t.clone() for k, t in trainer.tensors().items()} for trainer in trainers]
        self.generators = [trainer.generator.get_state() for trainer in trainers]
        self.host_generators = [trainer.host_generator.get_state() for trainer in trainers]
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self.cpu = torch.get_rng_state()

    def restore(self) -> None:
        states = zip(self.trainers, self.before, self.generators, self.host_generators)
        for trainer, before, generator, host_generator in states:
            for name, tensor in trainer.tensors().items():
                tensor.copy_(before[name])
            trainer.generator.set_state(generator)
            trainer.host_generator.set_state(host_generator)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        torch.set_rng_state(self.cpu)


def _try_compiled(trainers: Sequence[StageTrainer], execution: Execution) -> None:
    """Try one step with compiled members; if it fails, continue with uncompiled ones."""
    snapshot = Snapshot(trainers)
    try:
        _eager_step(trainers)
    except Exception as error:  # the compiler raises whatever its backends raise
        for trainer in trainers:
            for module in trainer.modules():
                module._compiled_call_impl = None
        execution.switch_off("compile", first_line(error))
    finally:
        snapshot.restore()
