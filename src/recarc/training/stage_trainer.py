"""The state of one stage in training, and its step: attack, update, weight average."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from recarc.geometry import Ball
from recarc.training.batches import CROP_DRAWS, Augmentation, Pixels, epoch_order
from recarc.training.distributed import share_batch_norm
from recarc.training.method import Method, Parts, Stage
from recarc.training.optimizer import Average, float_state, optimizer_for
from recarc.training.recipes import Recipe
from recarc.training.schedule import average_decay, learning_rate
from recarc.training.shadow_models import Copies, frozen_copy
from recarc.training.speed_options import Machine
from recarc.training.step_context import Team, uniform_in_ball_draws

PARTS = 8  # most named parts a loss can have
VALIDATION_STEPS = 10  # of the attack that validation uses, from zero


class Lane:
    """One stage: members in training, their optimizer and average, the current batch, and what was measured.

    `load` and `draw` fill fixed tensors with a batch, its rates and its random numbers; `step` only reads those, so
    that it can be captured.
    """

    def __init__(
        self,
        stage: Stage,
        method: Method,
        recipe: Recipe,
        masters: list[nn.Module],
        fixed: list[nn.Module],
        data: Pixels,
        augmentation: Augmentation,
        ball: Ball | None,
        seed: int,
        machine: Machine,
    ) -> None:
        self.stage, self.method, self.recipe, self.machine = stage, method, recipe, machine
        self.data, self.augmentation, self.seed = data, augmentation, seed
        self.masters = [machine.place(m).train() for m in masters]
        self.copies = [
            Copies(m, half=machine.bf16, attack_mode=recipe.attack_mode, fold=machine.fold, fuse=machine.fuse)
            for m in self.masters
        ]
        for c in self.copies:
            if machine.group.world > 1:  # after folding, which knows plain batch norm alone
                share_batch_norm(c.master)
                share_batch_norm(c.train)
            for module in {id(m): m for m in (c.train, c.attack)}.values():
                machine.compiled(module)
        others = [
            machine.compiled(frozen_copy(machine.place(f), machine.bf16, machine.fold, machine.fuse)) for f in fixed
        ]
        self._make_tensors(data)
        device = machine.device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.host = torch.Generator().manual_seed(seed)
        self.team = Team(
            trained=[c.train for c in self.copies],
            victims=[c.attack for c in self.copies],
            fixed=others,
            recipe=recipe,
            ball=ball,
            alpha=torch.tensor(method.mixture_alpha(len(fixed), len(masters)), device=device),
            host=self.host,
        )
        method.setup(self.team, self.pixels.float())
        self.optimizer = optimizer_for(recipe, [p.data for m in self.masters for p in m.parameters()])
        self.average = Average(self.masters) if recipe.ema else None
        self.judges = [copy.deepcopy(m).requires_grad_(False).eval() for m in self.masters]
        self.part_names: list[str] = []
        self.best: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self._order: tuple[int, Tensor] | None = None

    def _make_tensors(self, data: Pixels) -> None:
        device, batch = self.machine.device, self.recipe.batch
        self.share = self.machine.group.share(batch)
        size = self.share.stop - self.share.start
        self.pixels = torch.zeros((size, *data.shape), dtype=torch.uint8, device=device)
        self.labels = torch.zeros(size, dtype=torch.int64, device=device)
        self.draws = torch.zeros((batch, CROP_DRAWS + uniform_in_ball_draws(data.shape)), device=device)
        self.lr, self.decay = torch.zeros((), device=device), torch.zeros((), device=device)
        self.sums = torch.zeros(PARTS, device=device)
        self.ticks = torch.zeros(2, dtype=torch.int64, device=device)  # updates since the last reading, and ever
        self.bad = torch.full((), -1, dtype=torch.int64, device=device)  # the first update with a loss not finite

    def load(self, step: int, steps: int, steps_an_epoch: int) -> None:
        """The batch and the rates of a step, from 0."""
        epoch, place = divmod(step, steps_an_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(len(self.data), self.seed, epoch).to(self.machine.device)
        start = place * self.recipe.batch
        rows = self._order[1][start + self.share.start : start + self.share.stop]
        self.data.fetch(rows, self.pixels, self.labels)
        self.lr.fill_(learning_rate(self.recipe, step, steps))
        self.decay.fill_(average_decay(self.recipe, step))

    def draw(self) -> None:
        """This step's random numbers, for the whole batch of all processes."""
        self.draws.uniform_(generator=self.generator)

    def step(self) -> None:
        """One step on the loaded batch and the drawn numbers; on the device alone."""
        u = self.draws[self.share]
        x = self.augmentation(self.pixels, u[:, :CROP_DRAWS]).float().div_(self.data.levels)
        x = self.machine.layout(x)
        self.team.start = u[:, CROP_DRAWS:]
        for _ in range(self.recipe.replays):
            self._update(x, self.labels)

    def _update(self, x: Tensor, y: Tensor) -> None:
        with self.machine.autocast():
            for c in self.copies:
                c.refresh()
            with torch.no_grad():
                x_adv = self.method.attacked(self.team, x, y)
            if self.method.wants_input_gradient:
                x_adv = x_adv.detach().requires_grad_()
            parts = self.method.loss(self.team, x, x_adv, y)
        weights = [w for c in self.copies for w in c.weights()]
        total = torch.stack(list(parts.values())).sum()
        if self.method.wants_input_gradient:
            *gradients, at_input = torch.autograd.grad(total, [*weights, x_adv])
        else:
            gradients, at_input = list(torch.autograd.grad(total, weights)), None
        self.machine.group.average_(gradients)
        self.optimizer.update(gradients, self.lr)
        if self.average is not None:
            self.average.update(self.decay)
        if at_input is not None:
            self.method.after(self.team, x, x_adv.detach(), at_input)
        self._note(parts, total)

    @torch.no_grad()
    def _note(self, parts: Parts, total: Tensor) -> None:
        self.part_names = list(parts)
        self.sums[: len(parts)] += torch.stack([p.detach().float() for p in parts.values()])
        self.ticks += 1
        self.bad.copy_(torch.where((self.bad < 0) & ~torch.isfinite(total), self.ticks[1], self.bad))

    def read_losses(self) -> dict[str, float]:
        """Mean of every part of the loss since the last reading."""
        sums = self.machine.group.total(self.sums.clone()).tolist()
        count = max(int(self.ticks[0]), 1) * self.machine.group.world
        self.sums.zero_()
        self.ticks[0] = 0
        return {name: value / count for name, value in zip(self.part_names, sums)}

    def bad_step(self) -> int | None:
        """The step (from 1) whose loss was the first not to be finite."""
        first = int(self.bad)
        return None if first < 0 else -(-first // self.recipe.replays)

    @torch.no_grad()
    def seat_judges(self) -> None:
        """Puts the weights that validation and the result use (the average, if there is one) into `judges`."""
        live = [t for m in self.masters for t in float_state(m)]
        source = self.average.mean if self.average is not None else live
        torch._foreach_copy_([t for m in self.judges for t in float_state(m)], source)

    def judged_team(self) -> Team:
        recipe = replace(self.recipe, attack_steps=VALIDATION_STEPS)
        return replace(self.team, trained=self.judges, victims=self.judges, recipe=recipe, start=None)

    def modules(self) -> list[nn.Module]:
        """Every module a step runs."""
        return [*self.team.trained, *self.team.victims, *self.team.fixed]

    def tensors(self) -> dict[str, Tensor]:
        """Everything a step changes, by name: what a checkpoint keeps and a rehearsal must put back."""
        named = {f"member {i} {k}": v for i, m in enumerate(self.masters) for k, v in m.state_dict().items()}
        named |= {f"optimizer {i}": t for i, t in enumerate(self.optimizer.tensors())}
        if self.average is not None:
            named |= {f"average {i}": t for i, t in enumerate(self.average.tensors())}
        named |= {f"memory {k}": t for k, t in self.team.memory.items()}
        return named | {"alpha": self.team.alpha, "sums": self.sums, "ticks": self.ticks, "bad": self.bad}

    def whole_tensors(self) -> dict[str, Tensor]:
        """`tensors` on the CPU as one process would have them, whose share is the batch; all processes take part."""
        group = self.machine.group
        named = {k: t.detach().cpu().clone() for k, t in self.tensors().items()}
        named |= {f"memory {k}": group.gather(t) for k, t in self.team.memory.items()}
        return named | {"sums": group.gather(self.sums[None]).mean(0)}

    @torch.no_grad()
    def load_tensors(self, whole: Mapping[str, Tensor]) -> None:
        """Puts back what `whole_tensors` gave, with any number of processes."""
        shared = {f"memory {k}" for k in self.team.memory}
        for name, tensor in self.tensors().items():
            tensor.copy_(whole[name][self.share] if name in shared else whole[name])

    def result(self) -> list[dict[str, Tensor]]:
        """State dicts of the members: those of the best validation, else the last."""
        states = self.best.get("states")
        return states if states is not None else self.judged_states()

    def judged_states(self) -> list[dict[str, Tensor]]:
        self.seat_judges()
        return [{k: v.detach().cpu().clone() for k, v in m.state_dict().items()} for m in self.judges]
