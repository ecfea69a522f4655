"""Writes docs/commands.md from the commands and docs/zoo.md from the zoo's index: `python docs/pages.py`.

A test says when that was forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from recarc import zoo
from recarc.cli.app import app
from recarc.evaluation.fingerprint import eps_text
from recarc.provenance import short

HERE = Path(__file__).parent
HEAD = """# Commands

Every command and option, as `recarc COMMAND --help` prints them. Written by `python docs/pages.py`.

`python -m recarc` is the same program. With `--json` a command prints exactly one JSON object on standard output;
everything else goes to standard error. `--verbose` prints the traceback of an error. Exit codes: 0 done, 2 bad input, 3
interrupted and resumable, 1 anything else.
"""


def reference() -> str:
    return HEAD + "".join(_section(name, command) for name, command in _commands(typer.main.get_command(app), "recarc"))


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for key, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


def _section(name: str, command: Any) -> str:
    about = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    words = [f"{p.name.upper()}{'...' if p.nargs == -1 else ''}" for p in arguments]
    usage = " ".join([name, *(w if p.required else f"[{w}]" for w, p in zip(words, arguments)), "[OPTIONS]"])
    lines = [f"\n## {name}\n", about, f"\n```\n{usage}\n```\n"]
    rows = [_row(p, "`" + p.name.upper() + "`") for p in arguments]
    rows += [_row(p, ", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts))) for p in shown if p not in arguments]
    if rows:
        lines += ["| | what it is | default |\n|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _row(parameter: Any, names: str) -> str:
    default = parameter.default
    plain = isinstance(default, (str, int, float, Path)) and not isinstance(default, bool) and str(default)
    text = re.sub(r"\s+", " ", parameter.help or "").replace("|", r"\|")
    return f"| {names} | {text} | {'required' if parameter.required else f'`{default}`' if plain else ''} |"


WEIGHTS = """# Shipped weights

The ensembles that come with the package, as `zoo:NAME`, and how each came to be. All were trained by this project with
its own `recarc train`, from nothing but the data set named; no weights of others are included. They have the licence of
the code (MIT). CIFAR-10 is Krizhevsky's (2009); digits are those that scikit-learn ships. `src/recarc/zoo/index.json`
holds the same with the SHA-256 of every file, which is checked whenever one is loaded; `ensemble.json` in each folder
holds the full recipe and the curves. Written by `python docs/pages.py`.

Ensembles too large to ship travel as archives: `tar czf pair.tgz pair` of an ensemble folder here, and there
`recarc zoo add pair.tgz` makes it `zoo:pair`. An archive may hold that one folder, and nothing that its `ensemble.json`
does not name; hashes and weights are checked, no code is run, and what is refused leaves nothing behind. It is kept
in `zoo` beside the cache of data sets (`RECARC_CACHE`, or `~/.cache/recarc`).

| zoo: | trained by | seed | epochs | device, time | torch | commit | SHA-256 of the members |
|---|---|---|---|---|---|---|---|
"""


def weights() -> str:
    return WEIGHTS + "".join(map(_weight, zoo.entries()))


def _weight(entry: zoo.Entry) -> str:
    made = entry.provenance
    how = f"`{made['method']}` on {made['data']}, {made['arch']}, {made['norm']} eps {eps_text(made['eps'])}"
    hashes = "<br>".join(f"`{sha[:16]}`" for name, sha in entry.files.items() if name.endswith(".safetensors"))
    commit = f"`{short(made['commit'])}`" if made["commit"] else "not recorded"
    cells = (entry.name, how, made["seed"], f"{made['epochs']:g}", f"{made['device']}, {made['seconds']:.0f} s")
    return f"| {' | '.join(map(str, (*cells, made['torch'], commit, hashes)))} |\n"


PAGES = {"commands.md": reference, "zoo.md": weights}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (HERE / name).write_text(write(), encoding="utf-8")
