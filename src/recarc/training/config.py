"""The configuration of a training run, checked before any compute."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc.data.catalog import named, statistics
from recarc.data.imageset import ImageSet
from recarc.data.loading import load
from recarc.ensemble import RandomizedEnsemble, validated_alpha
from recarc.errors import InputError, first_line
from recarc.evaluation.fingerprint import describe, fingerprint
from recarc.geometry import Ball, Norm, odd_scale
from recarc.models.registry import build, maker, own_architecture
from recarc.models.store import check_member, load_ensemble, read_manifest
from recarc.training.method import Method
from recarc.training.methods import method_named
from recarc.training.recipes import Recipe, recipe_for


@dataclass(frozen=True)
class TrainingConfig:
    """A training run: method, data, architecture, ball, recipe, seed. `pretrained` are its first members."""

    method: Method
    data: ImageSet
    arch: str
    ball: Ball | None
    recipe: Recipe
    recipe_name: str
    members: int
    seed: int
    pretrained: tuple[nn.Module, ...] = ()
    alpha: Tensor | None = None
    arch_options: Mapping[str, Any] = field(default_factory=dict)
    start_split: Sequence[Mapping[str, Any]] = ()  # of the pretrained members' training: images held out, seconds

    def fresh_member(self, index: int) -> nn.Module:
        """Member `index` with the initial weights of its own seed, which is seed + index."""
        mean, std = normalisation(self.data)
        channels, height, width = self.data.shape
        if height != width:
            raise InputError(
                f"images of {self.data.name} are {height} x {width}; the architectures expect square images"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + index)
            return build(self.arch, len(self.data.classes), channels, height, mean, std, **self.arch_options)

    def to_json(self) -> dict[str, Any]:
        """What identifies a run: equal for a command and its rerun."""
        return {
            "format": 2,
            "method": self.method.name,
            "data": self.data.name,
            "fingerprint": self.data.fingerprint,
            "arch": self.arch,
            "arch_options": dict(self.arch_options),
            "norm": str(self.ball.norm) if self.ball else None,
            "eps": self.ball.eps if self.ball else None,
            "members": self.members,
            "seed": self.seed,
            "recipe": {"name": self.recipe_name, **self.recipe.to_json()},
            "start": [_weights_hash(member) for member in self.pretrained],
            **self._own_code(),
        }

    def _own_code(self) -> dict[str, str]:
        """What tells code of the user's own from an edited version of it."""
        parts: tuple[Any, ...] = (type(self.method), maker(self.arch))
        own = [part for part in parts if not str(part.__module__).startswith("recarc.")]
        return {"own_code": fingerprint(describe([self.method, *own]))[:16]} if own else {}


def configure(
    method: str | Method,
    data: str | Path | ImageSet,
    arch: str | Callable[..., nn.Module],
    *,
    norm: str | float | Norm | None,
    eps: float | None,
    recipe: str,
    changes: Mapping[str, Any],
    members: int | None,
    seed: int,
    start: str | Path | RandomizedEnsemble | Sequence[nn.Module] | None,
    alpha: Sequence[float] | None,
    arch_options: Mapping[str, Any],
    confirm: bool,
    saved: bool = False,
    data_dir: str | Path | None = None,
    trust_code: bool = False,
) -> TrainingConfig:
    """Check everything that can be checked without training; `saved`: the result goes into an ensemble folder."""
    chosen = method_named(method, trust_code) if isinstance(method, str) else method
    if not isinstance(chosen, Method):
        raise InputError(
            f"method is {chosen!r}; expected a name, or an instance of a subclass of recarc.training.Method"
        )
    arch = own_architecture(arch, trust_code, saved)
    pretrained = _members_of(start, trust_code)
    count = members if members is not None else max(chosen.default_members, len(pretrained))
    if not isinstance(count, int) or count < chosen.min_members:
        raise InputError(f"members is {count!r}; {chosen.name} needs a whole number >= {chosen.min_members}")
    if len(pretrained) > count:
        raise InputError(f"start has {len(pretrained)} members, but members is {count}; raise members")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number >= 0")
    if (eps is None) != (norm is None):
        raise InputError("norm and eps go together: give both, e.g. norm 'linf' and eps 8/255")
    if eps is None and chosen.needs_ball:
        raise InputError(f"{chosen.name} attacks while training: give norm and eps, e.g. --norm linf --eps 8/255")
    if eps == 0:
        raise InputError("eps is 0, which leaves nothing to train against: use `recarc train natural`")
    ball = None if eps is None or norm is None else Ball(norm, eps)
    images = data if isinstance(data, ImageSet) else load(data, "train", data_dir=data_dir)
    if ball is not None:
        check_scale(ball, images.shape, confirm)
    values = recipe_for(recipe, chosen, images.name, arch).changed(dict(changes))
    check_sizes(values, images)
    check_copies(values, chosen, images)
    weights = None if alpha is None else validated_alpha(alpha, count)
    config = TrainingConfig(
        chosen,
        images,
        arch,
        ball,
        values,
        recipe,
        count,
        seed,
        pretrained,
        weights,
        arch_options,
        _split_of(start),
    )
    check_architecture(config.fresh_member(0), arch, images)
    check_pretrained(pretrained, len(images.classes), saved)
    return config


def check_architecture(member: nn.Module, arch: str, images: ImageSet) -> None:
    """Does it map these images to logits?"""
    try:
        with torch.no_grad():
            shape = tuple(member.eval()(torch.zeros(2, *images.shape)).shape)
    except RuntimeError as error:
        raise InputError(f"architecture {arch!r} cannot take images of {images.shape}: {first_line(error)}") from None
    if shape != (2, len(images.classes)):
        raise InputError(f"architecture {arch!r} maps 2 images to {shape}; expected logits {(2, len(images.classes))}")


def check_pretrained(members: Sequence[nn.Module], classes: int, saved: bool) -> None:
    """Pretrained members must have the classes of the data and, if the result is saved, be savable themselves."""
    for i, member in enumerate(members):
        known = getattr(getattr(member, "spec", None), "classes", None)
        if known is not None and known != classes:
            raise InputError(f"member {i} of start has {known} classes, but the data have {classes}")
        if saved:
            check_member(member, f"member {i} of start")


def check_sizes(recipe: Recipe, data: ImageSet) -> None:
    """The validation split and one batch must fit into the training set."""
    rest = len(data) - recipe.validation
    if rest < 1:
        raise InputError(f"validation is {recipe.validation}, but {data.name} {data.split} has {len(data)} images")
    if recipe.batch > rest:
        raise InputError(f"batch {recipe.batch} is larger than the {rest} training images; lower it")


def check_copies(recipe: Recipe, method: Method, data: ImageSet) -> None:
    """Examples are made once only where the attacked members stay as they are and the images fit into memory."""
    if recipe.copies and not method.attacks_fixed_only:
        raise InputError(f"copies is for methods that attack fixed members alone, such as bat; {method.name} does not")
    if recipe.copies and data.streamed:
        raise InputError(f"copies needs the training images in memory; {data.name} is read from disk: leave it out")


def check_scale(ball: Ball, shape: Sequence[int], confirm: bool) -> None:
    """Refuse an eps of an unlikely scale unless it is confirmed."""
    reason = None if confirm else odd_scale(ball, shape)
    if reason is not None:
        raise InputError(
            f"eps {ball.eps:g} in {ball.norm} {reason}, as images are in [0, 1]: did you mean {ball.eps:g}/255? "
            "If it is intended, confirm it with --force (confirm=True)"
        )


def normalisation(data: ImageSet) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of each channel: published for a named set, measured for any other."""
    spec = named(data.name)
    if spec is not None and spec.mean is not None:
        return statistics(data.name)
    x, _ = data.limit(10_000).tensors()
    return x.mean((0, 2, 3)).tolist(), x.std((0, 2, 3)).clamp(min=1e-3).tolist()


def _members_of(
    start: str | Path | RandomizedEnsemble | Sequence[nn.Module] | None, trust_code: bool
) -> tuple[nn.Module, ...]:
    if start is None:
        return ()
    if isinstance(start, str | Path):
        start = load_ensemble(start, trust_code=trust_code)
    if isinstance(start, nn.Module) and not isinstance(start, RandomizedEnsemble):
        raise InputError(f"start is a single {type(start).__name__}; give a list of members, such as [member]")
    members = []
    for i, member in enumerate(start.members if isinstance(start, RandomizedEnsemble) else start):
        if not isinstance(member, nn.Module):
            raise InputError(f"member {i} of start is a {type(member).__name__}, not a torch.nn.Module")
        members.append(member)
    return tuple(members)


def _split_of(start: object) -> list[dict[str, Any]]:
    """What the training of the members in `start` held out and took, and those that it started from itself."""
    if not isinstance(start, str | Path):
        return []
    made_by = read_manifest(start).made_by
    splits = [made_by, *made_by.get("start_split", ())]
    kept = ("fingerprint", "validation_images", "seed", "seconds")
    return [{name: split.get(name) for name in kept} for split in splits]


def _weights_hash(member: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in member.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
