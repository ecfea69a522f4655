"""The randomized ensemble classifier (REC): one member, drawn with probability alpha_i, answers each query."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from html import escape
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from recarc.combined import Averaged, Member, Voted
from recarc.errors import InputError
from recarc.inputs import check_y
from recarc.lazy import import_object
from recarc.losses import loss_named

Real = TypeVar("Real", float, np.ndarray, Tensor)
DIGITS = 12  # of sums of probabilities; what is beyond them is rounding error


class RandomizedEnsemble(nn.Module):
    """Members f_i (any callables from inputs in the box to logits) and their sampling probabilities alpha.

    All figures are exact expectations over the draw of the member; only `forward` draws. `made_by` is what the folder
    of a loaded ensemble says of how it was made.

    >>> rec = RandomizedEnsemble([model_1, model_2], alpha=[0.9, 0.1])     # doctest: +SKIP
    >>> rec.expected_accuracy(x, y)                                         # doctest: +SKIP
    """

    def __init__(
        self,
        members: Sequence[Member],
        alpha: Sequence[float] | Tensor | None = None,
        *,
        made_by: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(members, nn.Module) and not isinstance(members, nn.ModuleList):
            raise InputError(f"members is one {type(members).__name__}; give a list of models: RandomizedEnsemble([f])")
        members = tuple(members)
        if not members:
            raise InputError("an ensemble needs at least one member")
        for i, member in enumerate(members):
            if not callable(member):
                raise InputError(f"member {i} is a {type(member).__name__}, not a callable from inputs to logits")
        self.members = members
        self.modules_of_members = nn.ModuleList(m for m in members if isinstance(m, nn.Module))
        self.training = any(getattr(m, "training", False) for m in self.modules_of_members)
        self.alpha = validated_alpha(alpha, len(members))
        self.made_by = dict(made_by or {})
        self.device_of_members()

    def __len__(self) -> int:
        return len(self.members)

    def extra_repr(self) -> str:
        return f"alpha={[round(a, 6) for a in self.alpha.tolist()]}"

    def _repr_html_(self) -> str:
        """For notebooks: one line per member."""
        lines = [["member (from 0)", "alpha", "made of", "parameters"]]
        for i, (member, alpha) in enumerate(zip(self.members, self.alpha.tolist())):
            spec = getattr(getattr(member, "spec", None), "label", None) or getattr(member, "__name__", None)
            count = sum(p.numel() for p in member.parameters()) if isinstance(member, nn.Module) else None
            lines.append([str(i), f"{alpha:.4g}", spec or type(member).__name__, "" if count is None else f"{count:,}"])
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines)
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"

    @property
    def order(self) -> list[int]:
        """Members by decreasing alpha, equal ones in the given order, without those of alpha 0 (the set I)."""
        alpha = self.alpha.tolist()
        return [i for i in sorted(range(len(alpha)), key=lambda i: -alpha[i]) if alpha[i] > 0]

    def device_of_members(self) -> torch.device | None:
        """The one device that holds every parameter; None if no member has any."""
        devices = {p.device for m in self.modules_of_members for p in m.parameters()}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise InputError(f"members are on different devices ({names}); move them with ensemble.to(device)")
        return next(iter(devices), None)

    def with_alpha(self, alpha: Sequence[float] | Tensor | None) -> RandomizedEnsemble:
        """The same members with other sampling probabilities."""
        return RandomizedEnsemble(self.members, alpha, made_by=self.made_by)

    def with_members(self, members: Sequence[Member]) -> RandomizedEnsemble:
        """Other members (wrapped, converted, accelerated) with the same alpha, to the last bit."""
        return RandomizedEnsemble(members, self.alpha, made_by=self.made_by)

    def logits(self, x: Tensor) -> Tensor:
        """(M, B, C) logits of every member."""
        outputs = []
        for i, member in enumerate(self.members):
            with untouched(x, i):
                outputs.append(member(x))
            check_logits(outputs[-1], x, i)
        counts = [out.shape[1] for out in outputs]
        if len(set(counts)) > 1:
            raise InputError(f"members disagree on the number of classes: {counts}")
        if counts[0] < 2:
            raise InputError("members have 1 output; a binary classifier needs two logits, e.g. nn.Linear(D, 2)")
        return torch.stack(outputs)

    @torch.no_grad()
    def predictions(self, x: Tensor) -> Tensor:
        """(M, B) labels; -1 where a member's logits hold NaN, which counts as wrong."""
        return predictions_of(self.logits(x))

    def correct(self, x: Tensor, y: Tensor) -> Tensor:
        """(M, B) member bits: does member i give the label y?"""
        check_y(y, x)
        return self.predictions(x) == y

    def expected_accuracy(self, x: Tensor, y: Tensor) -> Tensor:
        """L of Eq. (1) per sample, (B,) float64."""
        return self.score(self.correct(x, y))

    def score(self, correct: Tensor) -> Tensor:
        """sum_i alpha_i 1{member i is right} of (M, B) bits, (B,) float64; equal sums compare equal."""
        if correct.device.type == "mps":  # no float64 there
            correct = correct.cpu()
        alpha = self.alpha.to(correct.device, non_blocking=True)  # or the GPU would be waited for
        return rounded((alpha[:, None] * correct).sum(0))

    def expected_loss(self, x: Tensor, y: Tensor, loss: str = "ce") -> Tensor:
        """sum_i alpha_i l(f_i(x), y), (B,): the objective of adaptive PGD. Differentiable in x."""
        function = loss_named(loss)
        return sum((self.alpha[i].item() * function(self.members[i](x), y) for i in self.order), x.new_zeros(()))

    def expected_logits(self, x: Tensor) -> Tensor:
        """sum_i alpha_i f_i(x), (B, C). Differentiable in x."""
        return sum((self.alpha[i].item() * self.members[i](x) for i in self.order), x.new_zeros(()))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count,) member indices, independent draws d ~ alpha."""
        return torch.multinomial(self.alpha, count, replacement=True, generator=generator)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Deployment: a member is drawn for each sample. Never evaluate robustness with this."""
        return answered(self.members, x, self.draw(len(x), generator) if len(x) else self.alpha.new_zeros(0))

    def averaged(self) -> RandomizedEnsemble:
        """The deterministic rival, an ensemble of one member: the mean of the members' probabilities (`Averaged`)."""
        average = Averaged([self.members[i] for i in self.order], [float(self.alpha[i]) for i in self.order])
        return RandomizedEnsemble([average], made_by=self.made_by)

    def voted(self) -> RandomizedEnsemble:
        """The other deterministic rival: the majority vote of the members that are drawn at all (`Voted`)."""
        return RandomizedEnsemble([Voted([self.members[i] for i in sorted(self.order)])], made_by=self.made_by)

    def push_to_hub(self, repo: str, *, result: object = None, private: bool = False) -> str:
        """Upload as `user/name` to the Hugging Face Hub, with the verdict of an `Evaluation`; returns what to load."""
        pinned: str = import_object("function", "recarc.models:push_to_hub")(self, repo, result=result, private=private)
        return pinned

    def deploy(self, seed: int | None = None) -> Deployed:
        """The ensemble as it answers in service, drawing from the operating system's generator, which an attacker
        cannot predict; with a seed, the draws are the same every time (for tests)."""
        return Deployed(self, seed)


class Draws:
    """Independent draws d ~ alpha; without a seed, from the operating system's generator, which nobody can predict.

    Every alpha is a binary fraction, so a whole number below their common denominator is drawn: the probabilities are
    alpha to the last bit, with no rounding of a random float.
    """

    def __init__(self, alpha: Tensor, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InputError(f"seed is {seed!r}; it must be a whole number, or None for draws nobody can predict")
        shares = [Fraction(a) for a in alpha.tolist()]
        unit = max(share.denominator for share in shares)  # powers of two: the largest is a common denominator
        self._edges = list(accumulate(int(share * unit) for share in shares))
        self._source = secrets.SystemRandom() if seed is None else random.Random(seed)

    def __call__(self, count: int) -> Tensor:
        """(count,) member indices."""
        edges = self._edges
        values = (self._source.randrange(edges[-1]) for _ in range(count))
        return torch.tensor([next(i for i, edge in enumerate(edges) if v < edge) for v in values], dtype=torch.long)


class Deployed(nn.Module):
    """Answers every sample with a member drawn for it, without gradients.

    The draw is secret, but members of different cost give themselves away by the time an answer takes.
    """

    def __init__(self, ensemble: RandomizedEnsemble, seed: int | None = None) -> None:
        super().__init__()
        self.members = tuple(ensemble.members)
        self.modules_of_members = nn.ModuleList(m for m in self.members if isinstance(m, nn.Module))
        check_evaluation_mode(self.members)
        self.alpha = ensemble.alpha.clone()
        self.draws = Draws(self.alpha, seed)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C), each row from the member drawn for it."""
        return answered(self.members, x, self.draws(len(x)))

    def predict(self, x: Tensor) -> Tensor:
        """Labels (B,)."""
        return self(x).argmax(1)


def answered(members: Sequence[Member], x: Tensor, drawn: Tensor) -> Tensor:
    """Logits (B, C): row b from members[drawn[b]]; each member is called once, with its rows."""
    if not len(x):
        return members[0](x)
    drawn = drawn.to(x.device)
    chosen = [(drawn == i).nonzero()[:, 0] for i in range(len(members))]
    parts = {i: members[i](x[rows]) for i, rows in enumerate(chosen) if len(rows)}
    place = torch.cat([chosen[i] for i in parts]).argsort()
    return torch.cat(list(parts.values()))[place]


def check_evaluation_mode(members: Sequence[Member]) -> None:
    for i in in_train_mode(members):
        raise InputError(f"member {i} is in train mode; call ensemble.eval() before deploying it")


def in_train_mode(members: Sequence[Member]) -> list[int]:
    """The members of which a part is in train mode."""
    parts = [(i, m) for i, member in enumerate(members) if isinstance(member, nn.Module) for m in member.modules()]
    return sorted({i for i, m in parts if getattr(m, "training", False)})


def rounded(value: Real) -> Real:
    """Sums of probabilities to 12 digits, so that equal ones compare equal: 0.3, not 0.30000000000000004."""
    return round(value, DIGITS) if isinstance(value, float) else value.round(decimals=DIGITS)


def validated_alpha(alpha: Sequence[float] | Tensor | None, count: int) -> Tensor:
    """alpha as a (M,) float64 tensor that sums to one; None is equiprobable.

    What sums to one up to rounding is taken as it is, so that validating twice changes nothing.
    """
    if alpha is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64)
    narrow = str(getattr(alpha, "dtype", "")).endswith(("float32", "float16"))
    try:
        values = torch.as_tensor(alpha, dtype=torch.float64).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"alpha is {alpha!r}; expected one number per member, such as [0.9, 0.1]") from None
    if narrow:
        values = values.round(decimals=6)  # 0.1 in float32 is meant as 0.1
    shown = [round(v, 6) for v in values.flatten().tolist()]
    if values.dim() != 1 or len(values) != count:
        raise InputError(f"alpha has {values.numel()} values for {count} members: {shown}")
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise InputError(f"alpha must be probabilities >= 0, got {shown}")
    total = float(values.sum())
    if abs(total - 1) > 1e-5:
        raise InputError(f"alpha sums to {total:.6g}, not 1: {shown}; divide it by its sum")
    return values if abs(total - 1) <= 10**-DIGITS else values / total


def check_logits(out: object, x: Tensor, i: int) -> None:
    """Refuse anything but a (B, C) tensor, and say how to get one."""
    if not isinstance(out, Tensor):
        access: dict[type, str] = {tuple: "[0]", list: "[0]", dict: '["logits"]'}
        key = access.get(type(out), ".logits")
        raise InputError(
            f"member {i} returns a {type(out).__name__}, not logits; wrap it, such as lambda x: model(x){key}"
        )
    if out.dim() != 2 or len(out) != len(x):
        raise InputError(f"member {i} maps {tuple(x.shape)} to {tuple(out.shape)}; expected (B, classes)")


@contextmanager
def untouched(x: Tensor, i: int) -> Iterator[None]:
    """Refuse a member that writes into its input: the attack and the judge would see other images than were given."""
    before = None if x.is_inference() else x._version
    yield
    if before is not None and x._version != before:
        raise InputError(f"member {i} changes its input in place; let it work on a copy: x = x.clone()")


def predictions_of(logits: Tensor) -> Tensor:
    """Labels (...,) of logits (..., C); -1 where a logit is NaN."""
    return torch.where(logits.isnan().any(-1), -1, logits.argmax(-1))


def as_ensemble(model: RandomizedEnsemble | Member) -> RandomizedEnsemble:
    """A single model is an ensemble of one."""
    if isinstance(model, list | tuple):
        raise InputError(
            f"got a {type(model).__name__} of models; RandomizedEnsemble(models, alpha) draws one of them, uniformly "
            "without alpha"
        )
    return model if isinstance(model, RandomizedEnsemble) else RandomizedEnsemble([model])


@contextmanager
def frozen(ensemble: RandomizedEnsemble) -> Iterator[None]:
    """Evaluation mode without parameter gradients; every flag is restored at the end, also after an error."""
    modules = [(m, m.training) for m in ensemble.modules() if hasattr(m, "training")]  # a frozen script has no modes
    parameters = [p for p in ensemble.parameters() if p.requires_grad]
    try:
        for module, _ in modules:
            module.training = False
        for p in parameters:
            p.requires_grad_(False)
        yield
    finally:
        for module, training in modules:
            module.training = training
        for p in parameters:
            p.requires_grad_(True)
