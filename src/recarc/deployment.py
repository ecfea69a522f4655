"""Exported members: files that run elsewhere, without this package and without the members' Python code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc.atomic import replacing
from recarc.ensemble import RandomizedEnsemble, check_evaluation_mode
from recarc.errors import InputError, unknown

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
MANIFEST = "deployment.json"
AGREEMENT = 1e-3  # of an exported member with the original, relative to the largest logit; rounding is far below


def export(ensemble: RandomizedEnsemble, folder: str | Path, example: Tensor, format: str = "torch") -> Path:
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
    check_evaluation_mode(modules)
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
