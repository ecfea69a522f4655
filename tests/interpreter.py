"""New interpreters for scripts under test: each is forked from one that has imported torch, which takes seconds.

Nothing of recarc is imported in it, so a script still has to import what it uses.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from functools import cache
from pathlib import Path
from typing import Any


def run_python(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `python ARGUMENTS` does, these being a script, -m MODULE or -c CODE and its own arguments."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as folder:
        job = {"words": words, "cwd": str(cwd or Path.cwd()), "environment": {**os.environ, **environment}}
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        print(json.dumps({**job, "folder": folder}), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(words, code, out, err)


@cache
def _server() -> subprocess.Popen[str]:
    """One per test process; it ends with it, when its input does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    import torch

    torch.set_num_threads(1)
    del sys.path[0]  # this folder
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _child(job: dict[str, Any]) -> None:
    for number, name in enumerate(("in", "out", "err")):
        opened = os.open(Path(job["folder"], name), os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    paths = [path for path in job["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    try:
        _run(job["words"])
        code: object = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(words: list[str]) -> None:
    """As the interpreter does it: the first entry of sys.path is the script's folder, or the working folder."""
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    if words[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv, sys.path[:0] = words[1:], [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = words, [str(Path(words[0]).parent)]
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
