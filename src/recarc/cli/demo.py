"""`recarc demo`: why the usual test overestimates a randomized ensemble, in a minute or two on a laptop."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recarc.cli import options
from recarc.cli.output import percent, print_json, print_note
from recarc.errors import InputError

if TYPE_CHECKING:
    from recarc.ensemble import RandomizedEnsemble
    from recarc.evaluation import Evaluation
    from recarc.report import Report

# Norm, radius and alpha were chosen to make the effect large; the seed was not: see `python -m paper demo`.
SHIPPED = "zoo:bat-cnn-digits"  # trained with this setting and seed 0, so that everybody sees the same figures
SETTING: dict[str, Any] = {
    "norm": "l2",
    "eps": 0.9,
    "alpha": [0.7, 0.3],
    "arch": "cnn",
    "width": 16,
    "epochs": 16,
    "sweep_samples": 100,
    "alphas": [0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    "radii": [0.3, 0.6, 1.2],  # the sweep over alpha already has the point at 0.9
}
MARK = "demo.json"  # identifies a folder as one of the demo's own, which may be replaced
WHY = (
    "Linear members in the plane, all of them right at x. AdaptivePGD follows the gradient of the expected loss: that "
    "of an auxiliary classifier that is not in the ensemble. It walks between the members' lines to the edge of the "
    "ball and stops there without fooling anyone. ARC takes the members one at a time and crosses a line. With three "
    "members even ARC can miss the best point, which is why the tight attack continues from there towards the floor."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the ensemble, the runs and report.html.")] = Path("demo"),
    seed: Annotated[
        int | None, typer.Option(help="Train two members of your own with this seed, instead of the shipped ones.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Attack the mixture of two small models of digits with PGD, AdaptivePGD, ARC and tight, and write a page.

    Example: `recarc demo`, then open demo/report.html
    """
    start = time.perf_counter()
    setting = {**SETTING, "seed": seed}
    prepare_folder(out, setting)
    with one_thread():
        with step("1/4 the members: an adversarially trained model and its BAT partner", quiet):
            ensemble = make_ensemble(out / "ensemble", setting, quiet)
        with step("2/4 attacking their mixture: PGD, AdaptivePGD, ARC, tight with its floor", quiet):
            runs = run_attacks(ensemble, out, setting, quiet)
        with step("3/4 the same at other alphas and radii", quiet):
            run_sweeps(ensemble, out, setting, quiet)
    with step("4/4 writing the page", quiet):
        report = write_report(out)
    seconds = time.perf_counter() - start
    if json_:
        print_json(summary(report, runs, out, seconds))
    else:
        print_summary(report, out, seconds)


def prepare_folder(out: Path, setting: dict[str, Any]) -> None:
    """Use an empty folder or that of the same demo; replace another demo; refuse anything else."""
    mark, text = out / MARK, json.dumps(setting, sort_keys=True)
    if mark.exists() and mark.read_text(encoding="utf-8") != text:
        for name in ("ensemble", "runs"):
            shutil.rmtree(out / name, ignore_errors=True)
    elif not mark.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} holds other files; choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    mark.write_text(text, encoding="utf-8")


def make_ensemble(folder: Path, setting: dict[str, Any], quiet: bool) -> RandomizedEnsemble:
    """The shipped members, or with a seed of one's own members trained in the same way."""
    from recarc.atomic import replacing
    from recarc.models import load_ensemble
    from recarc.models.store import ensemble_folder
    from recarc.training import train

    if (folder / "ensemble.json").exists():
        return load_ensemble(folder)
    if setting["seed"] is None:
        with replacing(folder) as part:
            shutil.copytree(ensemble_folder(SHIPPED), part)
        return load_ensemble(folder)
    train(
        "bat",
        "digits",
        setting["arch"],
        norm=setting["norm"],
        eps=setting["eps"],
        alpha=setting["alpha"],
        seed=setting["seed"],
        changes={"epochs": setting["epochs"]},
        arch_options={"width": setting["width"]},
        out=folder,
        device="cpu",
        say=None if quiet else lambda line: None,  # no lines of the training, but its progress
    )
    return load_ensemble(folder)


def run_attacks(ensemble: RandomizedEnsemble, out: Path, setting: dict[str, Any], quiet: bool) -> dict[str, Evaluation]:
    from recarc.attacks import ARC, PGD, AdaptivePGD, RandomAttacker, Tight
    from recarc.data import load
    from recarc.evaluation import evaluate
    from recarc.geometry import Ball

    attacks = {"tight": Tight(), "adaptive_pgd": AdaptivePGD(), "arc": ARC(planes=4), "pgd": RandomAttacker(PGD())}
    data, ball = load("digits", "test"), Ball(setting["norm"], setting["eps"])
    return {
        name: evaluate(
            ensemble,
            attack,
            data,
            ball,
            out=out / "runs" / name,
            save_inputs=name in ("tight", "adaptive_pgd"),  # for the pictures
            progress=not quiet,
            batch_size=64,  # the progress bar moves more often
            precision="float32",  # on a GPU too, so that the figures are the same
        )
        for name, attack in attacks.items()
    }


def run_sweeps(ensemble: RandomizedEnsemble, out: Path, setting: dict[str, Any], quiet: bool) -> None:
    from recarc.attacks import Tight
    from recarc.data import load
    from recarc.geometry import Ball
    from recarc.sweep import sweep

    data, ball = load("digits", "test", limit=setting["sweep_samples"]), Ball(setting["norm"], setting["eps"])
    settings: dict[str, Any] = {"progress": not quiet, "precision": "float32", "batch_size": 50}
    settings["say"] = None if quiet else lambda point: print_note(f"    {point}")
    for over, values in (("alpha", setting["alphas"]), ("eps", setting["radii"])):
        folder = out / "runs" / f"over_{over}"
        sweep(ensemble, {"tight": Tight("quick")}, data, ball, over, values, folder, **settings)


def write_report(out: Path) -> Report:
    from recarc.report import Section, build_report, load_runs, plane_svg, write_page
    from recarc.report.plane import THREE, TWO

    names = ("tight", "adaptive_pgd", "arc", "pgd", "over_alpha", "over_eps")
    sections = [Section("Why AdaptivePGD stalls", WHY, [plane_svg(TWO), plane_svg(THREE)])]
    runs = load_runs([out / "runs" / name for name in names])
    report = build_report(runs, sections=sections)
    write_page(report, out / "report.html")
    return report


def lesson(report: Report) -> str:
    """What the figures show, in plain words."""
    figures = {row.name: row.estimate.value for row in report.rows}
    adaptive, tight, best = (100 * figures[name] for name in ("AdaptivePGD", "Tight", "Best member alone"))
    really = "really" if report.verdict is not None and report.verdict.conclusive else "at most"
    claim = f"AdaptivePGD, the usual test, reports {adaptive:.0f} %; the robust accuracy is {really} {tight:.0f} %"
    if tight < best - 0.5:
        return (
            f"{claim}, below the {best:.0f} % of the best member alone. Randomness fooled the test, not the attacker."
        )
    if tight > best + 0.5:
        return f"{claim}, above the {best:.0f} % of the best member alone. Randomness does help here."
    return f"{claim}, the same as that of its best member alone ({best:.0f} %)."


def summary(report: Report, runs: dict[str, Evaluation], out: Path, seconds: float) -> dict[str, Any]:
    tight = runs["tight"].to_json()
    keys = ("clean_accuracy", "robust_accuracy", "floor", "members")
    attacks = {row.name: row.estimate.value for row in report.rows}
    page = {"page": str(out / "report.html"), "seconds": seconds}
    return {**{key: tight[key] for key in keys}, "attacks": attacks, "lesson": lesson(report), **page}


def print_summary(report: Report, out: Path, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    facts = ", ".join(f"{name} {value}" for name, value in report.facts)
    table = Table("attack", title=f"Expected accuracy: {facts}", title_justify="left")
    table.add_column("%", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("")
    for row in report.rows:
        estimate = row.estimate
        style = "bold" if row.name in ("Tight", "AdaptivePGD") else None
        interval = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"
        table.add_row(row.name, percent(estimate.value), interval, row.description, style=style)
    console = Console()
    console.print(table)
    page = out / "report.html"
    console.print(f"{page} ({page.stat().st_size / 1024:.0f} kB, {seconds:.0f} s): open it in a browser.", style="dim")
    console.print(f"What this shows: {lesson(report)}", style="bold", highlight=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from more threads, and on a busy machine threads slow each other down."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def step(title: str, quiet: bool) -> Iterator[None]:
    """Announce a step and its duration; warnings about weak attacks would only repeat what the demo shows."""
    from recarc.evaluation import RecarcWarning

    start = time.perf_counter()
    if not quiet:
        print_note(title)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        yield
    if not quiet:
        print_note(f"    {time.perf_counter() - start:.0f} s")
