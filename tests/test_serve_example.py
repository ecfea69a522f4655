"""examples/serve.py, started on the loopback and asked over HTTP."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recarc.data import load

missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed: recarc[serve]")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import uvicorn  # type: ignore[import-not-found,unused-ignore]

    path = Path(__file__).parents[1] / "examples" / "serve.py"
    spec = importlib.util.spec_from_file_location("serve", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules["serve"] = example
    spec.loader.exec_module(example)
    server = uvicorn.Server(uvicorn.Config(example.app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    del sys.modules["serve"]


def ask(address: str, images: Any) -> tuple[int, Any]:
    body = json.dumps({"images": images}).encode()
    request = urllib.request.Request(f"{address}/predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_images_in_labels_out(address: str) -> None:
    x, y = load("digits", "test", limit=16).tensors()
    status, answer = ask(address, x.tolist())
    assert status == 200 and list(answer) == ["labels"]
    assert sum(a == b for a, b in zip(answer["labels"], y.tolist())) >= 12


def test_what_is_no_image_is_refused(address: str) -> None:
    assert ask(address, [[1.0]])[0] == 422
    assert ask(address, [[[[0.5]]]])[0] == 422
    assert ask(address, load("digits", "test", limit=1).tensors()[0].tolist())[0] == 200  # and it still answers
