"""The training state of one stage, and its step: attack, update, weight average."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from recarc.errors import InputError
from recarc.training.adversarial_copies import AdversarialCopies
from recarc.training.batches import CROP_DRAWS, Augmentation, Pixels, epoch_order
from recarc.training.config import TrainingConfig
from recarc.training.distributed import share_batch_norm
from recarc.training.method import LossTerms, Stage, StepContext, start_noise_size
from recarc.training.optimizer import Average, float_state, optimizer_for
from recarc.training.shadow_models import ShadowModels, frozen_copy
from recarc.training.speed_options import Execution

MAX_LOSS_TERMS = 8
VALIDATION_STEPS = 10  # of the attack used in validation, which starts at x


class StageTrainer:
    """Trains the members of one stage: their weights, optimizer and average, the current batch, and the history.

    `load` and `draw` fill preallocated tensors with a batch, its rates and its random numbers; `step` reads only
    those, so that it can be captured into a CUDA graph.
    """

    def __init__(
        self,
        stage: Stage,
        config: TrainingConfig,
        masters: list[nn.Module],
        fixed: list[nn.Module],
        data: Pixels,
        execution: Execution,
    ) -> None:
        self.stage, self.data, self.execution = stage, data, execution
        self.method, self.recipe = method, recipe = stage.method or config.method, config.recipe
        self.augmentation = Augmentation.of(config.data.name, recipe.crop)
        self.seed = config.seed + stage.members[0] + 7919 * stage.phase
        half, fold, fuse = (bool(on) for on in (execution.speed.bf16, execution.speed.fold, execution.speed.fuse))
        self.masters = [execution.place(m).train() for m in masters]
        self.shadows = [
            ShadowModels(m, half=half, attack_mode=recipe.attack_mode, fold=fold, fuse=fuse) for m in self.masters
        ]
        for shadow in self.shadows:
            if execution.group.world > 1:  # after folding, which knows plain batch norm only
                share_batch_norm(shadow.master)
                share_batch_norm(shadow.train)
            for module in {id(m): m for m in (shadow.train, shadow.attack)}.values():
                execution.compiled(module)
        frozen = [execution.compiled(frozen_copy(execution.place(f), half, fold, fuse)) for f in fixed]
        self._make_tensors(data)
        device = execution.device
        self.generator = torch.Generator(device).manual_seed(self.seed)
        self.host_generator = torch.Generator().manual_seed(self.seed)
        self.context = StepContext(
            trained=[shadow.train for shadow in self.shadows],
            victims=[shadow.attack for shadow in self.shadows],
            fixed=frozen,
            recipe=recipe,
            ball=config.ball,
            alpha=torch.tensor(method.training_alpha(len(fixed), len(masters)), device=device),
            host_generator=self.host_generator,
        )
        method.setup(self.context, self.pixels.float())
        self.reuses = bool(recipe.copies) and method.attacks_fixed_only  # trains on examples made once
        self.copies: AdversarialCopies | None = None  # made with the first batch
        self.optimizer = optimizer_for(recipe, [p.data for m in self.masters for p in m.parameters()])
        self.average = Average(self.masters) if recipe.ema else None
        self.eval_models = [copy.deepcopy(m).requires_grad_(False).eval() for m in self.masters]
        self.term_names: list[str] = []
        self.best: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self._order: tuple[int, Tensor] | None = None

    def _make_tensors(self, data: Pixels) -> None:
        device, batch = self.execution.device, self.recipe.batch
        self.share = self.execution.group.share(batch)
        size = self.share.stop - self.share.start
        self.pixels = torch.zeros((size, *data.shape), dtype=torch.uint8, device=device)
        self.examples = torch.zeros(self.pixels.shape, dtype=torch.float16, device=device)
        self.labels = torch.zeros(size, dtype=torch.int64, device=device)
        self.draws = torch.zeros((batch, CROP_DRAWS + start_noise_size(data.shape)), device=device)
        self.lr, self.decay = torch.zeros((), device=device), torch.zeros((), device=device)
        self.sums = torch.zeros(MAX_LOSS_TERMS, device=device)
        self.updates = torch.zeros(2, dtype=torch.int64, device=device)  # since the last reading, and in total
        self.bad = torch.full((), -1, dtype=torch.int64, device=device)  # the first update whose loss is not finite

    def load(self, step: int, steps: int, steps_per_epoch: int) -> None:
        """Load the batch and the rates of a step, counted from 0."""
        epoch, place = divmod(step, steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(len(self.data), self.seed, epoch).to(self.execution.device)
        start = place * self.recipe.batch
        rows = self._order[1][start + self.share.start : start + self.share.stop]
        self.data.fetch(rows, self.pixels, self.labels)
        if self.reuses:
            self.copies = self.copies or self._copies()
            self.copies.fetch(rows, epoch, self.examples)
        self.context.progress = step / steps
        self.lr.fill_(self.recipe.learning_rate(step, steps))
        self.decay.fill_(self.recipe.average_decay(step))

    def _copies(self) -> AdversarialCopies:
        before = None if self.recipe.augment_after else self.augmentation
        return AdversarialCopies(self.method, self.context, self.data, before, self.execution, self.seed)

    def draw(self) -> None:
        """Draw this step's random numbers, for the whole batch of all processes."""
        self.draws.uniform_(generator=self.generator)

    def step(self) -> None:
        """Take one step on the loaded batch with the drawn numbers; everything stays on the device."""
        u = self.draws[self.share]
        if not self.reuses:
            x = self.augmentation(self.pixels, u[:, :CROP_DRAWS]).float().div_(self.data.levels)
        elif self.recipe.augment_after:
            x = self.augmentation(self.examples, u[:, :CROP_DRAWS]).float()
        else:
            x = self.examples.float()
        x = self.execution.layout(x)
        self.context.start_noise = u[:, CROP_DRAWS:]
        for _ in range(self.recipe.replays):
            self._update(x, self.labels)

    def _update(self, x: Tensor, y: Tensor) -> None:
        with self.execution.autocast():
            for shadow in self.shadows:
                shadow.refresh()
            with torch.no_grad():
                x_adv = x if self.reuses else self.method.perturb(self.context, x, y)
            if self.method.needs_input_gradient:
                x_adv = x_adv.detach().requires_grad_()
            terms = self.method.loss(self.context, x, x_adv, y)
        weights = [w for shadow in self.shadows for w in shadow.weights()]
        if not isinstance(terms, dict):
            kind, name = type(terms).__name__, self.method.name
            raise InputError(f'loss of {name} returns a {kind}; expected named terms, such as {{"ce": ...}}')
        total = torch.stack(list(terms.values())).sum()
        if self.method.needs_input_gradient:
            *gradients, input_gradient = torch.autograd.grad(total, [*weights, x_adv])
        else:
            gradients, input_gradient = list(torch.autograd.grad(total, weights)), None
        self.execution.group.average_(gradients)
        self.optimizer.update(gradients, self.lr)
        if self.average is not None:
            self.average.update(self.decay)
        if input_gradient is not None:
            self.method.after_update(self.context, x, x_adv.detach(), input_gradient)
        self._record(terms, total)

    @torch.no_grad()
    def _record(self, terms: LossTerms, total: Tensor) -> None:
        self.term_names = list(terms)
        self.sums[: len(terms)] += torch.stack([t.detach().float() for t in terms.values()])
        self.updates += 1
        self.bad.copy_(torch.where((self.bad < 0) & ~torch.isfinite(total), self.updates[1], self.bad))

    def read_losses(self) -> dict[str, float]:
        """The mean of every loss term since the last reading."""
        sums = self.execution.group.total(self.sums.clone()).tolist()
        count = max(int(self.updates[0]), 1) * self.execution.group.world
        self.sums.zero_()
        self.updates[0] = 0
        return {name: value / count for name, value in zip(self.term_names, sums)}

    def bad_step(self) -> int | None:
        """The first step (from 1) whose loss was not finite."""
        first = int(self.bad)
        return None if first < 0 else -(-first // self.recipe.replays)

    @torch.no_grad()
    def update_eval_models(self) -> None:
        """Copy the weights used for validation and the result (the average, if there is one) into `eval_models`."""
        live = [t for m in self.masters for t in float_state(m)]
        source = self.average.mean if self.average is not None else live
        torch._foreach_copy_([t for m in self.eval_models for t in float_state(m)], source)

    def eval_context(self) -> StepContext:
        recipe = replace(self.recipe, attack_steps=VALIDATION_STEPS)
        return replace(
            self.context, trained=self.eval_models, victims=self.eval_models, recipe=recipe, start_noise=None
        )

    def modules(self) -> list[nn.Module]:
        """Every module a step runs."""
        return [*self.context.trained, *self.context.victims, *self.context.fixed]

    def tensors(self) -> dict[str, Tensor]:
        """Everything a step changes, by name: what a checkpoint saves and a trial step must restore."""
        named = {f"member {i} {k}": v for i, m in enumerate(self.masters) for k, v in m.state_dict().items()}
        named |= {f"optimizer {i}": t for i, t in enumerate(self.optimizer.tensors())}
        if self.average is not None:
            named |= {f"average {i}": t for i, t in enumerate(self.average.tensors())}
        named |= {f"buffer {k}": t for k, t in self.context.buffers.items()}
        return named | {"alpha": self.context.alpha, "sums": self.sums, "updates": self.updates, "bad": self.bad}

    def whole_tensors(self) -> dict[str, Tensor]:
        """`tensors` on the CPU as a single process would have them; all processes must call this."""
        group = self.execution.group
        named = {k: t.detach().cpu().clone() for k, t in self.tensors().items()}
        named |= {f"buffer {k}": group.gather(t) for k, t in self.context.buffers.items()}
        return named | {"sums": group.gather(self.sums[None]).mean(0)}

    @torch.no_grad()
    def load_tensors(self, whole: Mapping[str, Tensor]) -> None:
        """Load what `whole_tensors` returned, with any number of processes."""
        shared = {f"buffer {k}" for k in self.context.buffers}
        for name, tensor in self.tensors().items():
            tensor.copy_(whole[name][self.share] if name in shared else whole[name])

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint saves at this step; all processes must call this."""
        return {
            "step": step,
            "tensors": self.whole_tensors(),
            "device": self.generator.device.type,
            "generator": self.generator.get_state(),
            "host_generator": self.host_generator.get_state(),
            "terms": self.term_names,
            "best": self.best,
            "history": self.history,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.load_tensors(state["tensors"])
        if state["device"] == self.generator.device.type:
            self.generator.set_state(state["generator"])
        else:  # CPU and GPU generators cannot share a state: new numbers that depend on the step alone
            self.generator.manual_seed((self.seed * 1_000_003 + state["step"]) % 2**63)
        self.host_generator.set_state(state["host_generator"])
        self.term_names, self.best, self.history = state["terms"], state["best"], state["history"]

    def result(self) -> list[dict[str, Tensor]]:
        """The members' weights: those of the best validation, else the last."""
        states = self.best.get("states")
        return states if states is not None else self.eval_states()

    def eval_states(self) -> list[dict[str, Tensor]]:
        self.update_eval_models()
        return [weights_of(m) for m in self.eval_models]


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's state dict on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
