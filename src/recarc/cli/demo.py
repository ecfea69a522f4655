"""`recarc demo`: why the usual test flatters a randomized ensemble, in about a minute on a laptop."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recarc.cli.output import print_json
from recarc.errors import InputError

if TYPE_CHECKING:
    from recarc.ensemble import RandomizedEnsemble
    from recarc.evaluation import Evaluation
    from recarc.report import Report

# Norm, radius and alpha were chosen so that the effect is large, the seed was not: with seeds 0 to 3 AdaptivePGD is
# 20 to 25 points above the tight figure, and that is 0.3 to 1.0 points above the floor.
SETTING: dict[str, Any] = {
    "norm": "l2",
    "eps": 0.9,
    "alpha": [0.7, 0.3],
    "arch": "cnn",
    "width": 16,
    "epochs": 16,
    "seed": 0,
    "sweep_samples": 150,
    "alphas": [0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    "radii": [0.3, 0.6, 1.2],  # at 0.9 the sweep over alpha has the point already
}
MARK = "demo.json"  # says that a folder is a demo's own, so that it may be replaced
WHY = (
    "Linear members in the plane, all right at x. AdaptivePGD follows the average of their gradients: an auxiliary "
    "classifier that is not in the ensemble. It walks between the members' lines, reaches the edge of the ball and "
    "stops, with nobody fooled. ARC takes the members one by one and crosses a line. With three members even ARC can "
    "miss the best point, which is why the tight attack goes on from there until it meets the floor."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the ensemble, the runs and report.html.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train two small models on digits, attack their mixture in every way, and write a page to look at.

    Example: `recarc demo`, then open demo/report.html
    """
    began = time.perf_counter()
    setting = {**SETTING, "seed": seed}
    prepare(out, setting)
    with one_thread():
        with step("1/4 training an adversarially trained model and a BAT partner", quiet):
            ensemble = trained(out, setting, quiet)
        with step("2/4 attacking their mixture: PGD, AdaptivePGD, ARC, tight with its floor", quiet):
            runs = attacked(ensemble, out, setting, quiet)
        with step("3/4 the same at other alphas and radii", quiet):
            swept(ensemble, out, setting, quiet)
    with step("4/4 writing the page", quiet):
        report = written(out)
    seconds = time.perf_counter() - began
    if json_:
        print_json(summary(report, runs, out, seconds))
    else:
        show(report, out, seconds)


def prepare(out: Path, setting: dict[str, Any]) -> None:
    """An empty folder, or the one of this very demo; an older demo is replaced, anything else is left alone."""
    mark = out / MARK
    told = json.dumps(setting, sort_keys=True)
    if mark.exists() and mark.read_text(encoding="utf-8") != told:
        for name in ("ensemble", "runs"):
            shutil.rmtree(out / name, ignore_errors=True)
    elif not mark.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} holds other files; choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    mark.write_text(told, encoding="utf-8")


def trained(out: Path, setting: dict[str, Any], quiet: bool) -> RandomizedEnsemble:
    from recarc.models import load_ensemble
    from recarc.training import train

    folder = out / "ensemble"
    if not (folder / "ensemble.json").exists():
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
            say=None if quiet else _nothing,
        )
    return load_ensemble(folder)


def attacked(ensemble: RandomizedEnsemble, out: Path, setting: dict[str, Any], quiet: bool) -> dict[str, Evaluation]:
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
            batch_size=64,  # the bar moves more often
            precision="float32",  # as `recarc evaluate` has it, so that the page's commands repeat these very runs
        )
        for name, attack in attacks.items()
    }


def swept(ensemble: RandomizedEnsemble, out: Path, setting: dict[str, Any], quiet: bool) -> None:
    from recarc.attacks import Tight
    from recarc.data import load
    from recarc.geometry import Ball
    from recarc.sweep import sweep

    data, ball = load("digits", "test", limit=setting["sweep_samples"]), Ball(setting["norm"], setting["eps"])
    options: dict[str, Any] = {"progress": not quiet, "precision": "float32", "batch_size": 50}
    options["tell"] = None if quiet else lambda point: print(f"    {point}", file=sys.stderr, flush=True)
    for over, values in (("alpha", setting["alphas"]), ("eps", setting["radii"])):
        folder = out / "runs" / f"over_{over}"
        sweep(ensemble, {"tight": Tight("quick")}, data, ball, over, values, folder, **options)


def written(out: Path) -> Report:
    from recarc.report import Section, build_report, load_runs, plane_svg, write_page
    from recarc.report.plane import THREE, TWO

    names = ("tight", "adaptive_pgd", "arc", "pgd", "over_alpha", "over_eps")
    sections = [Section("Why AdaptivePGD stalls", WHY, [plane_svg(TWO), plane_svg(THREE)])]
    runs = load_runs([out / "runs" / name for name in names])
    seed = json.loads((out / MARK).read_text(encoding="utf-8"))["seed"]
    command = shlex.join(["recarc", "demo", "--out", str(out), "--seed", str(seed)])
    report = build_report(runs, sections=sections, ensemble=str(out / "ensemble"), command=command)
    write_page(report, out / "report.html")
    return report


def lesson(report: Report) -> str:
    """What the figures say, in plain words."""
    figures = {row.name: row.estimate.value for row in report.rows}
    adaptive, tight, best = (100 * figures[name] for name in ("AdaptivePGD", "Tight", "Best member alone"))
    really = "really" if report.verdict is not None and report.verdict.conclusive else "at most"
    first = f"AdaptivePGD, the usual test, says {adaptive:.0f} %; the ensemble is {really} worth {tight:.0f} %"
    if tight < best - 0.5:
        rest = (
            f", less than the {best:.0f} % of its best member alone. The randomness fooled the test, not the attacker."
        )
    elif tight > best + 0.5:
        rest = f", more than the {best:.0f} % of its best member alone. The randomness does help here."
    else:
        rest = f", as much as its best member alone ({best:.0f} %)."
    return first + rest


def summary(report: Report, runs: dict[str, Evaluation], out: Path, seconds: float) -> dict[str, Any]:
    told = runs["tight"].to_json()
    keys = ("clean_accuracy", "robust_accuracy", "floor", "members")
    attacks = {row.name: row.estimate.value for row in report.rows}
    page = {"page": str(out / "report.html"), "seconds": seconds}
    return {**{key: told[key] for key in keys}, "attacks": attacks, "lesson": lesson(report), **page}


def show(report: Report, out: Path, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    facts = ", ".join(f"{name} {value}" for name, value in report.facts)
    table = Table(title=f"Expected accuracy: {facts}", title_justify="left")
    for name, side in (("attack", "left"), ("%", "right"), ("95 % interval", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for row in report.rows:
        found = row.estimate
        weight = "bold" if row.name in ("Tight", "AdaptivePGD") else None
        interval = f"{100 * found.low:.1f} to {100 * found.high:.1f}"
        table.add_row(row.name, f"{100 * found.value:.2f}", interval, row.description, style=weight)
    console = Console()
    console.print(table)
    page = out / "report.html"
    console.print(f"{page} ({page.stat().st_size / 1024:.0f} kB, {seconds:.0f} s): open it in a browser.", style="dim")
    console.print(f"What this shows: {lesson(report)}", style="bold", highlight=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Nets this small gain nothing from more; on a busy machine, threads that wait for each other cost a lot."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def step(title: str, quiet: bool) -> Iterator[None]:
    """Says what is being done; warnings about single attacks would repeat what the demo is there to show."""
    from recarc.evaluation import RecarcWarning

    began = time.perf_counter()
    if not quiet:
        print(title, file=sys.stderr, flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        yield
    if not quiet:
        print(f"    {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def _nothing(line: str) -> None:
    """Lines of the training are left out; its live line stays."""
