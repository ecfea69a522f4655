"""Adversarial examples made once and used again, for a method whose attack looks at fixed members only."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recarc.errors import InputError
from recarc.training.batches import CROP_DRAWS, Augmentation, Pixels
from recarc.training.method import Method, StepContext, start_noise_size
from recarc.training.speed_options import Execution

BATCH = 1000  # images attacked at a time


class AdversarialCopies:
    """Augmented copies of the training set, attacked; epoch e trains on copy e modulo their number.

    As the attacked members do not change, an example is as good in the last epoch as in the first, and an epoch costs
    one pass instead of one per step of the attack. What is given up is that every epoch draws crops and starting points
    of its own. The examples stay on the device in half precision, 2 bytes for each value of a pixel. They depend on the
    seed alone: a resumed run makes the same ones again.
    """

    def __init__(
        self,
        method: Method,
        context: StepContext,
        data: Pixels,
        augmentation: Augmentation | None,
        execution: Execution,
        seed: int,
    ) -> None:
        """`augmentation` None: attack the images as they are."""
        count, device = context.recipe.copies, execution.device
        try:
            self.examples = torch.empty((count, len(data), *data.shape), dtype=torch.float16, device=device)
        except RuntimeError:
            size = 2 * count * len(data) * torch.Size(data.shape).numel() / 1e9
            raise InputError(f"copies is {count}, which needs {size:.1f} GB on {device}: lower it") from None
        generator = torch.Generator(device).manual_seed(seed)
        draws = CROP_DRAWS + start_noise_size(data.shape)
        for examples in self.examples:
            for rows in torch.arange(len(data), device=device).split(BATCH):
                x, y = data.images(rows)
                u = torch.rand((len(x), draws), generator=generator, device=device)
                if augmentation is not None:
                    x = augmentation(x, u[:, :CROP_DRAWS])
                with execution.autocast(), torch.no_grad():
                    started = replace(context, start_noise=u[:, CROP_DRAWS:])
                    examples[rows] = method.perturb(started, execution.layout(x), y).half()

    def fetch(self, rows: Tensor, epoch: int, examples: Tensor) -> None:
        """Fill `examples` (B, C, H, W) with those of these rows for an epoch."""
        torch.index_select(self.examples[epoch % len(self.examples)], 0, rows, out=examples)
