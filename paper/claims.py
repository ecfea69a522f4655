"""The claims at stake, each judged by what has been measured so far: confirmed, refuted, or undecided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paper.items.figures import IAT_GAIN
from paper.items.head_to_head import ahead_of_climb
from paper.results import Figure, ItemResult, RowResult
from paper.tables import point

Results = Mapping[str, ItemResult]
Pair = tuple[RowResult, Figure, Figure]
NEAR = 0.5  # points by which two attacks may differ and still count as equal; the verdict's own limit
OVERESTIMATE = 8  # points
FULL_SEARCH = {"cifar10": 9, "cifar100": 99, "imagenet": 999}


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds (None: the intervals leave it open), the worst figure in a sentence, and the evidence."""

    holds: bool | None
    summary: str
    evidence: list[str]


@dataclass(frozen=True)
class Judged:
    claim: str
    verdict: str
    summary: str = ""
    evidence: tuple[str, ...] = ()

    def markdown(self) -> str:
        head = f"- **{self.claim}** {self.verdict.capitalize()}. {self.summary}".rstrip()
        return "\n".join([head, *(f"    - {line}" for line in self.evidence)])


def judge(results: Results) -> list[Judged]:
    judged = []
    for claim, test in CLAIMS.items():
        finding = test(results)
        if finding is None:
            judged.append(Judged(claim, "not measured yet"))
        else:
            verdict = {True: "confirmed", False: "refuted", None: "undecided: the intervals overlap the limit"}[
                finding.holds
            ]
            judged.append(Judged(claim, verdict, finding.summary, tuple(finding.evidence)))
    return judged


def _rows(results: Results, *items: str) -> Iterator[RowResult]:
    for item in items:
        yield from results[item].rows if item in results else ()


def _both(rows: Iterator[RowResult], one: str, other: str) -> list[Pair]:
    """Rows with both columns; an ensemble that is in two tables with the same figures counts once."""
    unique: dict[tuple[object, ...], Pair] = {}
    for row in rows:
        a, b = row.figure(one), row.figure(other)
        if a is not None and b is not None:
            unique.setdefault((row.ensemble or row.row, row.norm, a.measured, b.measured), (row, a, b))
    return list(unique.values())


def _split(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The real ensembles, and those for which the search for alpha chose one member alone."""
    single = [pair for pair in pairs if pair[0].alpha is not None and max(pair[0].alpha) == 1]
    return [pair for pair in pairs if pair not in single], single


def _named(pairs: list[Pair], form: str) -> list[str]:
    return [form.format(row=_label(row), n=_basis(row), a=a.measured, b=b.measured) for row, a, b in pairs]


def _label(row: RowResult) -> str:
    """A row's name, preceded by its data set if it is named after its norm alone."""
    return f"{row.data} {row.row}" if row.row in ("l2", "linf") else row.row


def _count(things: list[Any], noun: str) -> str:
    return f"{len(things)} {noun}" + "s" * (len(things) != 1)


def _basis(row: RowResult) -> str:
    """What a figure rests on: how many images, and how the members were trained."""
    return f"n = {row.images}, {row.recipe}" if row.recipe else f"n = {row.images}"


def _half(*figures: Figure) -> float:
    """Half the width of the 95 % interval of a sum or difference, as if its terms were independent."""
    return math.hypot(*((f.interval[1] - f.interval[0]) / 2 if f.interval else 0.0 for f in figures))


def _at_least(limit: float, gaps: list[tuple[float, float]]) -> bool | None:
    """Whether every gap, given with half its interval, reaches the limit."""
    if all(gap - half >= limit for gap, half in gaps):
        return True
    return False if any(gap + half < limit for gap, half in gaps) else None


def _span(gaps: list[tuple[float, float]]) -> str:
    values = [gap for gap, _ in gaps]
    return f"{min(values):.2f} to {max(values):.2f} points over {_count(gaps, 'ensemble')}"


def _overestimate(results: Results) -> Finding | None:
    pairs, single = _split(_both(_rows(results, "table1", "table2"), "APGD", "ARC"))
    if not pairs:
        return None
    gaps = []
    for row, a, b in pairs:
        paired = row.figure("Diff")
        gaps.append((a.measured - b.measured, _half(paired) if paired else _half(a, b)))
    printed = [-paired.paper for row, _, _ in pairs if (paired := row.figure("Diff")) and paired.paper is not None]
    less = [_label(row) for (row, _, _), (gap, half) in zip(pairs, gaps) if gap + half < OVERESTIMATE]
    summary = f"APGD exceeds ARC by {_span(gaps)}" + (
        f", by less than {OVERESTIMATE} on {', '.join(less)}" if less else ""
    )
    summary += f"; in the paper by {min(printed):.2f} to {max(printed):.2f} for the same networks." if printed else "."
    form = "{row}: {a:.2f} under APGD, {b:.2f} under ARC ({n})"
    lines = _named(pairs, form) + [
        f"not counted, because the search for alpha chose one member alone: {line}" for line in _named(single, form)
    ]
    return Finding(_at_least(OVERESTIMATE, gaps), summary, lines)


def _below_at(results: Results) -> Finding | None:
    pairs, _ = _split(_both(_rows(results, "table1", "table2"), "ARC", "AT: PGD"))
    if not pairs:
        return None
    gaps = [(b.measured - a.measured, _half(a, b)) for _, a, b in pairs]
    summary = f"By {_span(gaps)}."
    form = "{row}: the ensemble keeps {a:.2f} under ARC, the AT model {b:.2f} under PGD ({n})"
    return Finding(_at_least(0, gaps), summary, _named(pairs, form))


def _alpha_one(results: Results) -> Finding | None:
    curves: dict[
        str, tuple[RowResult, list[tuple[float, float]]]
    ] = {}  # by what was measured, which may be in two items
    for row in _rows(results, "figure3", "figure7", "figure6"):
        if row.axis == "alpha" and 1.0 in dict(row.curve("ARC")):
            curves.setdefault(f"{row.ensemble} {row.curve('ARC')}", (row, row.curve("ARC")))
    if not curves:
        return None
    lost, lines = [], []
    for row, curve in curves.values():
        (x, best), one = max(curve, key=lambda p: (p[1], p[0])), dict(curve)[1.0]
        lost.append(best - one)
        name = row.row if row.norm in row.row else f"{row.norm} {row.row}"
        lines.append(f"{name}: best {best:.2f} at alpha {x:g}, {one:.2f} at 1 ({_basis(row)})")
    summary = f"No other alpha gains more than {max(lost):.2f} points over {_count(lost, 'sweep')}."
    return Finding(max(lost) <= NEAR, summary, lines)


def _restarts(results: Results) -> Finding | None:
    pairs = _both(_rows(results, "table3"), "APGD + RR", "APGD")
    if not pairs:
        return None
    gaps = [a.measured - b.measured for _, a, b in pairs]
    summary = f"With restarts the ensembles keep {min(gaps):.2f} to {max(gaps):.2f} points more."
    return Finding(
        min(gaps) >= -NEAR, summary, _named(pairs, "{row}: {a:.2f} under APGD + RR, {b:.2f} under plain APGD ({n})")
    )


def _four_planes(results: Results) -> Finding | None:
    gaps, lines = [], []
    for row in _rows(results, "table5", "table5-cifar10", "table5-imagenet-sample"):
        curve = dict(row.curve("ARC"))
        if 4 in curve and len(curve) > 1:
            four, most = curve[4], max(curve)
            line = f"{_label(row)}: {four:.2f} with G = 4, {curve[most]:.2f} with G = {most:g} ({_basis(row)})"
            if most >= FULL_SEARCH.get(row.data, most):
                gaps.append(abs(four - curve[most]))
                lines.append(line)
            else:
                lines.append(f"not counted, because far from all planes were tried: {line}")
    if not gaps:
        return None
    summary = f"They differ by at most {max(gaps):.2f} points over {_count(gaps, 'ensemble')}."
    return Finding(max(gaps) <= NEAR, summary, lines)


def _iat(results: Results) -> Finding | None:
    row = results["figure10"].row("M") if "figure10" in results else None
    curve = dict(row.curve("ARC")) if row else {}
    if row is None or 1 not in curve or 8 not in curve:
        return None
    paired = row.figure(IAT_GAIN)
    gain = paired.measured if paired else curve[8] - curve[1]
    ends = [f for f in row.figures if f.column == "ARC" and f.x in (1, 8)]
    half = _half(paired) if paired else _half(*ends)
    lines = [f"under ARC {curve[1]:.2f} with M = 1 and {curve[8]:.2f} with M = 8 ({_basis(row)})"]
    tight = dict(row.curve("tight"))
    if 1 in tight and 8 in tight:
        lines.append(f"under tight {tight[1]:.2f} and {tight[8]:.2f}")
    holds = True if gain + half < 3 else False if gain - half >= 3 else None
    return Finding(holds, f"They gain {gain:.2f} ± {half:.2f} points under ARC.", lines)


def _diversity(results: Results) -> Finding | None:
    once: dict[str, tuple[RowResult, float, float]] = {}  # by ensemble; of several rows the one measured best
    for row in sorted(_rows(results, "figure4", "figure9"), key=lambda r: (-r.images, _quick(r))):
        arc, tight = (row.figure(column, 8) or row.figure(column) for column in ("ARC", "tight"))
        if arc is not None and tight is not None:
            once.setdefault(row.ensemble, (row, arc.measured, tight.measured))
    if not once:
        return None
    gaps = [a - t for _, a, t in once.values()]
    lines = [
        f"{row.ensemble}: {a:.2f} under ARC, {t:.2f} under tight at eps 8/255 ({_basis(row)})"
        for row, a, t in once.values()
    ]
    return Finding(min(gaps) > NEAR, f"By {min(gaps):.2f} to {max(gaps):.2f} points.", lines)


def _floor(results: Results) -> Finding | None:
    """Judged by the attack at its usual effort; the quick preset is shown as well."""
    measured, _ = _split(_both(_rows(results, *results), "tight", "floor"))
    measured += _widest_in_sweeps(results)
    pairs = [pair for pair in measured if not _quick(pair[0])]
    if not pairs:
        return None
    *gaps, (gap, widest) = sorted((a.measured - b.measured, _label(row)) for row, a, b in pairs)
    summary = f"It stays {gap:.2f} points above the floor on {widest}"
    summary += f", at most {gaps[-1][0]:.2f} on {_count(gaps, 'other')}." if gaps else "."
    lines = _named(pairs, "{row}: {a:.2f}, floor {b:.2f} ({n})")
    quick = [pair for pair in measured if _quick(pair[0])]
    lines += _named(quick, "with the quick preset, {row}: {a:.2f}, floor {b:.2f} ({n})")
    return Finding(gap <= NEAR, summary, lines)


def _quick(row: RowResult) -> bool:
    return "quick" in row.attacks.get("tight", "")


def _widest_in_sweeps(results: Results) -> list[Pair]:
    """The point of every sweep at which tight stays farthest above the floor."""
    widest_of: dict[str, Pair] = {}
    for row in _rows(results, *results):
        points = [(f, row.figure("floor", f.x)) for f in row.figures if f.column == "tight" and f.x is not None]
        pairs = [(row, tight, floor) for tight, floor in points if floor is not None]
        if pairs:
            widest = max(pairs, key=lambda pair: pair[1].measured - pair[2].measured)
            at = f"{row.ensemble} at {point(row.axis, widest[1].x or 0.0)}"
            widest_of.setdefault(at, (replace(row, row=at), widest[1], widest[2]))
    return list(widest_of.values())


def _arc_wins(results: Results) -> Finding | None:
    """At the radius where ARC does worst."""
    worst: dict[str, tuple[float, str]] = {}  # by ensemble, which may be in several rows
    gaps: list[tuple[float, float]] = []
    for row in _rows(results, "figure9", "figure4"):
        places = {f.x for f in row.figures if f.column == "ARC"}
        points = [(x, row.figure("ARC", x), row.figure("APGD", x)) for x in places]
        for x, arc, apgd in points:
            if arc is None or apgd is None:
                continue
            gap = arc.measured - apgd.measured
            gaps.append((gap, _half(arc, apgd)))
            eps = row.eps if x is None else f"{x:g}/255"
            line = f"{row.ensemble}: worst at eps {eps}, ARC {arc.measured:.2f} and APGD {apgd.measured:.2f}"
            worst[row.ensemble] = max(worst.get(row.ensemble, (-math.inf, "")), (gap, f"{line} ({_basis(row)})"))
    if not gaps:
        return None
    most = max(gaps)[0]
    summary = f"Up to {most:.2f} points more survive ARC than APGD." if most > 0 else "Less survives ARC everywhere."
    holds = True if most <= NEAR else False if any(gap > max(NEAR, half) for gap, half in gaps) else None
    return Finding(holds, summary, [line for _, line in worst.values()])


def _climb_ahead(results: Results) -> Finding | None:
    rows = list(_rows(results, "head-to-head"))
    if not rows:
        return None
    ahead = [found for row in rows for found in ahead_of_climb(row)]
    gaps = [(own.measured - rival.measured, _half(own, rival)) for own, rival, _ in ahead]
    basis = f"{_count(rows, 'row')} of {min(row.images for row in rows)} images or more"
    most = max((gap for gap, _ in gaps), default=0.0)
    summary = f"At most {most:.2f} points ahead, over {basis}." if ahead else f"None does, over {basis}."
    holds = True if most <= NEAR else False if any(gap > max(NEAR, half) for gap, half in gaps) else None
    return Finding(holds, summary, [line for *_, line in ahead])


CLAIMS: dict[str, Callable[[Results], Finding | None]] = {
    f"AdaptivePGD overestimates BAT ensembles by {OVERESTIMATE} points and more.": _overestimate,
    "ARC puts BAT ensembles below the single AT model.": _below_at,
    "Under ARC alpha = 1 is best: the second member only costs accuracy.": _alpha_one,
    "Ten random restarts (+RR) are no stronger than plain APGD.": _restarts,
    "ARC with G = 4 equals the full search.": _four_planes,
    "Eight independently trained members gain less than 3 points.": _iat,
    "ARC itself still overestimates diversity-trained ensembles (ours).": _diversity,
    "The tight attack meets its floor (ours).": _floor,
    "ARC is at least as strong as APGD on DVERGE, ADP and TRS, at any radius.": _arc_wins,
    f"No other attack gets more than {NEAR} points below Climb with as few gradients (ours).": _climb_ahead,
}
