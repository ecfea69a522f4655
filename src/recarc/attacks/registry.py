"""Attacks by name: each class registers itself, and the command line, the report and the adapters follow from that.

@register("my_attack", label="Mine", help="what it does, in a few words")
@dataclass(frozen=True)
class MyAttack(Attack):
    steps: int = 20
    def perturb(self, problem: Problem) -> Tensor: ...
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from recarc.errors import InputError, unknown
from recarc.lazy import import_object

DEFAULT = "tight"
OPTIONS = ("preset", "steps", "step_size", "planes", "seed", "loss", "random_init")  # knobs of the command line itself
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}
T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Entry:
    """What `register` was given, and for which class."""

    name: str
    label: str
    help: str
    module: str
    cls: str
    random_member: bool
    fixed: Mapping[str, Any]  # knobs that the name decides

    def load(self) -> Any:
        return getattr(import_module(self.module), self.cls)


def register(name: str, *, label: str, help: str, random_member: bool = False, **fixed: Any) -> Callable[[T], T]:
    """Give an attack class a name on the command line and a label in reports.

    `fixed` knobs make a name of its own for a variant; `random_member` attacks a member drawn with alpha instead of a
    given one. Arguments must be literals: those of this package are read from its source, without importing it.
    """

    def add(cls: T) -> T:
        entry = Entry(name, label, help, cls.__module__, cls.__name__, random_member, fixed)
        taken = _entries().get(name, entry)
        if (taken.module, taken.cls) != (entry.module, entry.cls):
            raise InputError(f"the attack name {name!r} is taken by {taken.module}:{taken.cls}; choose another")
        _entries()[name] = entry
        return cls

    return add


@cache
def _entries() -> dict[str, Entry]:
    """Every attack of this package, read off its decorators: `recarc --help` need not wait for torch."""
    found = (entry for file in Path(__file__).parent.glob("*.py") for entry in _registered_in(file))
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}


def _registered_in(file: Path) -> Iterator[Entry]:
    classes = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))
    for node in classes:
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == register.__name__:
                given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
                own = {key: given.pop(key, False) for key in ("label", "help", "random_member")}
                name = ast.literal_eval(call.args[0])
                yield Entry(name, module=f"{__package__}.{file.stem}", cls=node.name, fixed=given, **own)


def names() -> list[str]:
    return list(_entries())


def help(name: str) -> str:
    """What the attack of this name does, in one line."""
    return _entry(name).help


def help_of(label: str) -> str | None:
    """What the attack that reports call by this label does, in one line."""
    return next((entry.help for entry in _entries().values() if entry.label == label), None)


def _entry(name: str) -> Entry:
    if name == "apgd":
        raise InputError("APGD has two meanings: adaptive_pgd is the paper's, autopgd that of Croce and Hein")
    if name not in _entries():
        raise unknown("attack", name, _entries(), own="Class")
    return _entries()[name]


def attack_named(name: str, restarts: int = 1, *, trust_code: bool = False, **knobs: Any) -> Any:
    """The attack of this name, or of a user's own `package.module:Class`, with these knobs (None: its default)."""
    if restarts < 1:
        raise InputError(f"--restarts is {restarts}; it must be a whole number of at least 1")
    entry, made, known = _loaded(name, trust_code)
    chosen = {key: value for key, value in knobs.items() if value is not None}
    for key in chosen.keys() - known.keys():
        option = _option(key)
        listed = ", ".join(sorted(known)) or "no knobs"
        raise InputError(f"{option} does not apply to the attack {name!r}; leave it out (it has {listed})")
    _check_kinds(made, chosen)
    for key in known:
        if known[key] and key not in chosen:
            raise InputError(f"the attack {name!r} has no default for {key}; add --knob {key}=...")
    if restarts > 1 and "random_init" in known:
        chosen["random_init"] = True
    fixed = {} if entry is None else entry.fixed
    attack = made(**fixed, **chosen) if isinstance(made, type) else made
    if entry is not None and entry.random_member:
        if restarts != 1:
            raise InputError(f"--restarts does not apply to the attack {name!r}; use adaptive_pgd or pgd1")
        from recarc.attacks.combine import RandomAttacker

        return RandomAttacker(attack)
    if restarts != 1:
        from recarc.attacks.combine import Restarts

        return Restarts(attack, n=restarts)
    return attack


def _option(knob: str) -> str:
    """How a knob is given on the command line."""
    return "--" + knob.replace("_", "-") if knob in OPTIONS else f"--knob {knob}"


def _check_kinds(made: Any, knobs: Mapping[str, Any]) -> None:
    """Refuse what is of another kind than a class says of its knob: random_init=no is a text, and counts as true."""
    try:
        hints = get_type_hints(made) if isinstance(made, type) else {}
    except (NameError, TypeError):  # a class whose hints cannot be read
        hints = {}
    for knob in knobs.keys() & hints.keys():
        hint, value = hints[knob], knobs[knob]
        kinds = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)) - {type(None)}
        taken = kinds | ({int} if float in kinds else set())
        if kinds <= KINDS.keys() and type(value) not in taken:
            expected = " or ".join(KINDS[kind] for kind in KINDS if kind in kinds)
            raise InputError(f"{_option(knob)} is {value!r}; expected {expected}")


def knobs_of(name: str, trust_code: bool = False) -> set[str]:
    """The names of the knobs that `attack_named` takes for this attack."""
    return set(_loaded(name, trust_code)[2])


def _loaded(name: str, trust_code: bool) -> tuple[Entry | None, Any, dict[str, bool]]:
    """The entry, if the attack has one; its class, or a user's own object; its knobs, and whether each is required."""
    if ":" not in name:
        entry = _entry(name)
        made = entry.load()
        return entry, made, {key: required for key, required in _knobs(made).items() if key not in entry.fixed}
    if not trust_code:
        raise InputError(f"attack {name!r} runs code of that module; add --trust-code if you trust it")
    made = import_object("attack", name)
    return None, made, _knobs(made)


def _knobs(made: Any) -> dict[str, bool]:
    """The arguments of a class, and whether each is required; what is already made, such as a function, has none."""
    if not isinstance(made, type):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    arguments = inspect.signature(made).parameters.values()
    return {a.name: a.default is a.empty for a in arguments if a.kind in named}


def label(config: Mapping[str, Any]) -> str:
    """What a report calls an attack, from the configuration that a run recorded of it."""
    kind, inner = str(config.get("class", "attack")), config.get("attack")
    if kind == "Restarts" and isinstance(inner, Mapping) and _ours(config):
        return f"{label(inner)}, {config.get('n')} restarts"
    if kind == "RandomAttacker" and isinstance(inner, Mapping) and _ours(config):
        drawn = next((e for e in _of_class(inner) if e.random_member), None)
        return drawn.label if drawn else f"{label({**inner, 'member': None})} on a random member"
    fits = [e for e in _of_class(config) if not e.random_member and _fits(e.fixed, config)]
    best = max(fits, key=lambda e: len(e.fixed), default=None)
    text = kind if best is None else best.label
    if best is None and not _ours(config) and any(kind in (e.cls, e.label) for e in _entries().values()):
        text = f"{kind} (own code)"  # a user's class with the name of one of these
    if isinstance(config.get("member"), int) and (best is None or "member" not in best.fixed):
        text += f" on member {config['member']}"
    return f"{text} on logits" if config.get("expectation") == "logits" else text


def _ours(config: Mapping[str, Any]) -> bool:
    """Whether the class belongs to this package: a run records the code of every other class."""
    return "class_code" not in config


def _of_class(config: Mapping[str, Any]) -> list[Entry]:
    """The entries of the class that a run recorded."""
    own = __name__.partition(".")[0]
    named = (e for e in _entries().values() if e.cls == config.get("class"))
    return [e for e in named if (e.module.partition(".")[0] == own) == _ours(config)]


def _fits(fixed: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(key in config and config[key] == value for key, value in fixed.items())
