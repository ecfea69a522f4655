"""What people type: the options that several commands share, and values such as 8/255, 0.9,0.1 or lr=0.1."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from recarc.errors import InputError

EnsembleArgument = Annotated[
    Path,
    typer.Argument(
        help="A folder (`recarc train`, `recarc import`), zoo:NAME (`recarc zoo list`), hf:USER/NAME@COMMIT."
    ),
]
AlphaOption = Annotated[str | None, typer.Option(help="Override the sampling probabilities, e.g. 0.9,0.1.")]

DataOption = Annotated[
    str,
    typer.Option(
        help="A data set's name (`recarc data list`), or a path: a folder of images or arrays, .parquet, .npz or .pt."
    ),
]
SplitOption = Annotated[str, typer.Option(help="Split of the data set.")]
DataDirOption = Annotated[Path | None, typer.Option(help="Where the files of data sets are (default: RECARC_DATA).")]
LimitOption = Annotated[int | None, typer.Option(help="Use only the first LIMIT samples.")]

NORM = typer.Option(help="linf, l2, l1 or a number p >= 1.")
EPS = typer.Option(help="Radius of the ball in the units of the inputs, such as 8/255.")
NormOption = Annotated[str, NORM]
EpsOption = Annotated[str, EPS]
BoxOption = Annotated[str, typer.Option(help="Range of valid inputs: low,high, or none.")]

PresetOption = Annotated[str | None, typer.Option(help="Effort of the tight attack: quick, standard or thorough.")]
StepsOption = Annotated[int | None, typer.Option(help="Iterations of the attack.")]
StepSizeOption = Annotated[str | None, typer.Option(help="Step size of the attack, such as 2/255.")]
PlanesOption = Annotated[
    int | None, typer.Option(help="ARC's G: competing classes per step (default: all that can be nearest).")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the attack's random numbers.")]

TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Follow the run in wandb[:PROJECT], mlflow[:EXPERIMENT] or tensorboard:FOLDER; repeatable. Set up by "
        "their own variables, such as WANDB_MODE=offline or MLFLOW_TRACKING_URI."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="Precision of the attack's search: auto (float16 on a GPU, else float32), float32, float64, tf32, float16 "
        "or bfloat16. Points are always judged in float32."
    ),
]
TrustCodeOption = Annotated[
    bool,
    typer.Option("--trust-code", help="Allow running Python code named by the ensemble folder or on the command line."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print no progress and no tables.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def number(name: str, text: str) -> float:
    """A number or a fraction such as 8/255."""
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name} is {text!r}; expected a number or a fraction such as 8/255")
    return value


def numbers(name: str, text: str) -> list[float]:
    """Numbers or fractions, separated by commas."""
    try:
        return [number(name, part.strip()) for part in text.split(",")]
    except InputError:
        raise InputError(f"{name} is {text!r}; expected numbers or fractions with commas, such as 0.9,0.1") from None


def assignments(name: str, form: str, texts: Sequence[str]) -> dict[str, Any]:
    """lr=0.1, drops=[0.5,0.75], batch_norm=true, stem=imagenet: values are JSON where possible, otherwise strings."""
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InputError(f"{name} takes {form}, got {text!r}")
        try:
            values[key] = json.loads(value)
        except (ValueError, RecursionError):
            values[key] = value
    return values


def size(name: str, text: str) -> int | str:
    """A whole number, or "auto"."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} is {text!r}; expected auto or a whole number") from None


def box(text: str) -> tuple[float, float] | None:
    """low,high; or none."""
    if text == "none":
        return None
    values = numbers("--box", text)
    if len(values) != 2:
        raise InputError(f"--box is {text!r}; expected low,high such as 0,1, or none")
    return values[0], values[1]


def trackers(texts: Sequence[str] | None) -> list[Any]:
    """What --track names; of several processes the first one tracks."""
    from recarc.adapters.trackers import tracker_named
    from recarc.runtime import first_process

    return [tracker_named(text) for text in texts or () if first_process()]
