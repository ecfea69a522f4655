"""Deployment: members drawn so that nobody can predict which one answers, and exported files to run elsewhere."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from recarc.atomic import replacing
from recarc.errors import InputError, unknown

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
MANIFEST = "deployment.json"
AGREEMENT = 1e-3  # of an exported member with the original, relative to the largest logit; rounding is far below


class Drawn(Protocol):
    """What deployment needs of an ensemble: its members, and how often each is drawn."""

    @property
    def members(self) -> Sequence[Callable[[Tensor], Tensor]]: ...

    @property
    def alpha(self) -> Tensor: ...


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

    def __init__(self, ensemble: Drawn, seed: int | None = None) -> None:
        super().__init__()
        self.members = tuple(ensemble.members)
        self.modules_of_members = nn.ModuleList(m for m in self.members if isinstance(m, nn.Module))
        _check_modes(self.members)
        self.alpha = ensemble.alpha.clone()
        self.draws = Draws(self.alpha, seed)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C), each row from the member drawn for it."""
        return answered(self.members, x, self.draws(len(x)))

    def predict(self, x: Tensor) -> Tensor:
        """Labels (B,)."""
        return self(x).argmax(1)


def answered(members: Sequence[Callable[[Tensor], Tensor]], x: Tensor, drawn: Tensor) -> Tensor:
    """Logits (B, C): row b from members[drawn[b]]; each member is called once, with its rows."""
    if not len(x):
        return members[0](x)
    drawn = drawn.to(x.device)
    chosen = [(drawn == i).nonzero()[:, 0] for i in range(len(members))]
    parts = {i: members[i](x[rows]) for i, rows in enumerate(chosen) if len(rows)}
    place = torch.cat([chosen[i] for i in parts]).argsort()
    return torch.cat(list(parts.values()))[place]


def export(ensemble: Drawn, folder: str | Path, example: Tensor, format: str = "torch") -> Path:
    """Write each member as a file that runs without its Python code, for any batch size, and alpha to
    `deployment.json`.

    `example` is a batch of inputs; each file is read back and must give the member's logits on it. format="torch":
    `torch.export` programs. format="onnx": needs the extra recarc[onnx].
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if example.dim() < 2 or len(example) < 2:
        raise InputError(f"example has shape {tuple(example.shape)}; give a batch of at least 2 inputs, (B, C, H, W)")
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose another folder for the exported members")
    if format == "onnx":
        _need_onnx()
    modules = [member if isinstance(member, nn.Module) else _Callable(member).eval() for member in ensemble.members]
    _check_modes(modules)
    with replacing(folder) as part:
        part.mkdir()
        manifest = {
            "format": format,
            "alpha": ensemble.alpha.tolist(),
            "input": {"shape": list(example.shape[1:]), "dtype": str(example.dtype).removeprefix("torch.")},
            "members": [_exported(m, part / f"member_{i}{FORMATS[format]}", example) for i, m in enumerate(modules)],
            "torch": torch.__version__,
        }
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2))
    return folder


def _check_modes(members: Sequence[Callable[[Tensor], Tensor]]) -> None:
    for i, member in enumerate(members):
        if isinstance(member, nn.Module) and any(getattr(m, "training", False) for m in member.modules()):
            raise InputError(f"member {i} is in train mode; call ensemble.eval() before deploying it")


class _Callable(nn.Module):
    """A plain function as the module that exporters ask for."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _exported(module: nn.Module, file: Path, example: Tensor) -> dict[str, Any]:
    """Write one member, read it back, and compare."""
    with torch.no_grad():
        expected = module(example)
        program = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        if file.suffix == FORMATS["torch"]:
            torch.export.save(program, file)
            logits = torch.export.load(file).module()(example)
        else:
            names: dict[str, Any] = {"input_names": ["x"], "output_names": ["logits"]}
            torch.onnx.export(program, (), str(file), dynamo=True, external_data=False, verbose=False, **names)
            logits = _run_onnx(file, example)
    gap = float((logits.to(expected) - expected).abs().max() / expected.abs().max().clamp(min=1))
    if not gap <= AGREEMENT:
        raise InputError(
            f"{file.name} gives other logits than the member it was exported from (they differ by {gap:.2g})"
        )
    return {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "difference": gap}


def _need_onnx() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"ONNX export needs {error.name}: install recarc[onnx]") from None


def _run_onnx(file: Path, x: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.detach().cpu().numpy()})[0])
