"""The definitions and data that code names in files of the user, read from their source and not from memory.

So a log, a cache or a counter, which change while an attack runs, do not make it another attack.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Source: TypeAlias = tuple[str, str | None]  # a module, and a name in it; None: the module itself
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Definition:
    """What statements at the top of a file bind to a name: their digest, and the names and attributes in them."""

    digest: str = ""
    names: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    imported: list[Source] = field(default_factory=list)  # what the name stands for, if it is imported
    within: list[Source] = field(default_factory=list)  # imports inside a function


def reached(module: str, names: Iterable[str], attributes: Iterable[str] = ()) -> dict[str, str]:
    """The digest of every definition that these names of a module lead to, through all modules of the user.

    Of a module that is named, `attributes` of it are what is used there.
    """
    found: dict[str, str] = {}
    waiting, seen = [(module, name, frozenset(attributes)) for name in names], set[tuple[str, str, frozenset[str]]]()
    while waiting:
        place = waiting.pop()
        where, name, used = place
        if place in seen or f"{where}.{name}" in found:
            continue
        seen.add(place)
        here = _definitions(where)
        definition = here.get(name) or here.get("*") or Definition()
        for source in definition.imported:
            waiting += _onwards(source, used, name)
        if definition.digest and name in here:
            found[f"{where}.{name}"] = definition.digest
            inside = frozenset(definition.attributes)
            waiting += [(where, other, inside) for other in definition.names]
            for source in definition.within:
                waiting += _onwards(source, inside, name)
    return dict(sorted(found.items()))


def _onwards(source: Source, attributes: frozenset[str], sought: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Where an import leads: to the name that it takes from a module, or to the attributes of it that are used."""
    module, name = source
    if not _of_the_user(module):
        return
    if name == "*":
        yield module, sought, attributes
    elif name is not None and not _of_the_user(f"{module}.{name}"):
        yield module, name, attributes
    else:
        parts = module.split(".")
        wholes = [f"{module}.{name}"] if name else [".".join(parts[: k + 1]) for k in range(len(parts))]
        yield from ((whole, used, attributes) for whole in wholes for used in attributes)


def _definitions(module: str) -> dict[str, Definition]:
    """Those of a module of the user; none of others, or without a source."""
    if not _of_the_user(module):
        return {}
    loaded, file = sys.modules.get(module), _file(module) or ""
    if loaded is None:
        return _read.__wrapped__(module, file, _Same(None))
    return _read(module, file, _Same(getattr(loaded, "__spec__", None) or loaded))


@dataclass(frozen=True)
class _Same:
    """Equal for one import of a module alone, so that a file edited since is not taken for the code in memory."""

    spec: Any  # made anew when a module is imported again

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


@cache
def _read(module: str, file: str, imported: _Same) -> dict[str, Definition]:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    package = module if Path(file).name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, Definition] = {}
    for statement in tree.body:
        _add(statement, package, found)
    return found


def _add(statement: ast.stmt, package: str, found: dict[str, Definition]) -> None:
    """Note what a statement binds; of one with others inside (if, try, with) each name stands for all of it."""
    digest = hashlib.sha256(ast.dump(statement).encode()).hexdigest()
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imports = [pair for node in nodes for pair in _imports(node, package)]
    for name, source in imports if not isinstance(statement, SCOPES) else ():
        found.setdefault(name, Definition()).imported.append(source)
    for name in _bound(statement):
        definition = found.setdefault(name, Definition())
        definition.within += [source for _, source in imports]
        definition.digest = hashlib.sha256((definition.digest + digest).encode()).hexdigest()
        definition.names |= names - {name}
        definition.attributes |= attributes


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, SCOPES):
        return {statement.name}
    nodes = list(ast.walk(statement))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    changed = {
        node.value.id
        for node in nodes
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.value, ast.Name)
        if isinstance(statement, (ast.Assign, ast.AugAssign)) and isinstance(node.ctx, ast.Store)
    }
    return stored | changed | {node.name for node in nodes if isinstance(node, SCOPES)}


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """(name here, (module, name there)) of an import statement."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, None)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield alias.asname or alias.name, (module, alias.name)


def _of_the_user(module: str) -> bool:
    """Whether a module is neither Python's nor installed: its code may change without a version that says so."""
    file = None if module.partition(".")[0] == "recarc" else _file(module)
    if file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        return False
    return not Path(file).is_relative_to(sysconfig.get_path("stdlib"))


def _file(module: str) -> str | None:
    """The file of a module; of a package without one, its folder."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return _to_be_imported(module)
    return getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", None) or ()), None)


def _to_be_imported(module: str) -> str | None:
    """The same before it is imported, such as inside a function."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # of whatever its package does when it is imported
        return None
    return None if spec is None else spec.origin
