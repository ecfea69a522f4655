"""The claims at stake, each judged by the results files that are there: confirmed, refuted, or not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recarc.experiments.results import Figure, ItemResult, RowResult

Results = Mapping[str, ItemResult]
Pair = tuple[RowResult, Figure, Figure]
NEAR = 0.5  # points: what two attacks may differ by and still be called equal, and the verdict's own limit


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds, the least favourable figure in a sentence, and what it was found on."""

    holds: bool
    summary: str
    evidence: list[str]


@dataclass(frozen=True)
class Judged:
    claim: str
    verdict: str  # confirmed, refuted or not measured yet
    summary: str = ""
    evidence: tuple[str, ...] = ()

    def markdown(self) -> str:
        head = f"- **{self.claim}** {self.verdict.capitalize()}. {self.summary}".rstrip()
        return "\n".join([head, *(f"    - {line}" for line in self.evidence)])


def judge(results: Results) -> list[Judged]:
    judged = []
    for claim, test in CLAIMS.items():
        found = test(results)
        if found is None:
            judged.append(Judged(claim, "not measured yet"))
        else:
            verdict = "confirmed" if found.holds else "refuted"
            judged.append(Judged(claim, verdict, found.summary, tuple(found.evidence)))
    return judged


def _rows(results: Results, *items: str) -> Iterator[RowResult]:
    for item in items:
        yield from results[item].rows if item in results else ()


def _both(rows: Iterator[RowResult], one: str, other: str) -> list[Pair]:
    """Rows with both columns; an ensemble that stands in two tables with the same figures counts once."""
    unique: dict[tuple[object, ...], Pair] = {}
    for row in rows:
        a, b = row.figure(one), row.figure(other)
        if a is not None and b is not None:
            unique.setdefault((row.ensemble or row.row, row.norm, a.measured, b.measured), (row, a, b))
    return list(unique.values())


def _randomized(pairs: list[Pair]) -> tuple[list[Pair], str]:
    """Without the rows in which alpha is 1 for one member, which is then all there is; and a sentence on those."""
    single = [row.row for row, _, _ in pairs if row.alpha is not None and max(row.alpha) == 1]
    left = [pair for pair in pairs if pair[0].row not in single]
    if not single:
        return left, ""
    return left, f" Left out, because the search for alpha chose the first member alone: {', '.join(single)}."


def _named(pairs: list[Pair], form: str) -> list[str]:
    return [form.format(row=_label(row), n=_basis(row), a=a.measured, b=b.measured) for row, a, b in pairs]


def _label(row: RowResult) -> str:
    """A row's name; of one that is called after its norm alone, the data too."""
    return f"{row.data} {row.row}" if row.row in ("l2", "linf") else row.row


def _count(things: list[Any], noun: str) -> str:
    return f"{len(things)} {noun}" + "s" * (len(things) != 1)


def _basis(row: RowResult) -> str:
    """What a figure rests on: how many images, and how the members were trained."""
    return f"n = {row.images}, {row.recipe}" if row.recipe else f"n = {row.images}"


def _flattery(results: Results) -> Finding | None:
    pairs, without = _randomized(_both(_rows(results, "table1", "table2"), "APGD", "ARC"))
    if not pairs:
        return None
    gaps = [a.measured - b.measured for _, a, b in pairs]
    summary = f"APGD less ARC is {min(gaps):.2f} to {max(gaps):.2f} points over {_count(gaps, 'ensemble')}.{without}"
    return Finding(min(gaps) >= 8 - NEAR, summary, _named(pairs, "{row}: {a:.2f} against {b:.2f} ({n})"))


def _below_at(results: Results) -> Finding | None:
    pairs, without = _randomized(_both(_rows(results, "table1", "table2"), "ARC", "AT: PGD"))
    if not pairs:
        return None
    gaps = [b.measured - a.measured for _, a, b in pairs]
    summary = f"By {min(gaps):.2f} to {max(gaps):.2f} points over {_count(gaps, 'ensemble')}.{without}"
    form = "{row}: ARC leaves the ensemble {a:.2f}, PGD leaves AT {b:.2f} ({n})"
    return Finding(min(gaps) > 0, summary, _named(pairs, form))


def _alpha_one(results: Results) -> Finding | None:
    curves: dict[str, tuple[RowResult, list[tuple[float, float]]]] = {}  # by what was measured, which may stand twice
    for row in _rows(results, "figure3", "figure7", "figure6"):
        if row.axis == "alpha" and row.curve("ARC"):
            curves.setdefault(f"{row.ensemble} {row.curve('ARC')}", (row, row.curve("ARC")))
    if not curves:
        return None
    lost, lines = [], []
    for row, curve in curves.values():
        (x, best), one = max(curve, key=lambda p: (p[1], p[0])), dict(curve).get(1.0, 0.0)
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
    summary = f"Restarts leave {min(gaps):.2f} to {max(gaps):.2f} points more."
    return Finding(min(gaps) >= -NEAR, summary, _named(pairs, "{row}: +RR leaves {a:.2f}, plain APGD {b:.2f} ({n})"))


def _four_planes(results: Results) -> Finding | None:
    fine, gaps, lines = [], [], []
    for row in _rows(results, "table5", "table5-cifar10", "table5-imagenet-sample"):
        curve = dict(row.curve("ARC"))
        if 4 in curve and len(curve) > 1:
            four, most = curve[4], max(curve)
            gaps.append(abs(four - curve[most]))
            fine.append(gaps[-1] <= max(NEAR, _one_more(row)))
            lines.append(f"{_label(row)}: {four:.2f} with G = 4, {curve[most]:.2f} with G = {most:g} ({_basis(row)})")
    if not fine:
        return None
    return Finding(all(fine), f"They differ by at most {max(gaps):.2f} points.", lines)


def _one_more(row: RowResult) -> float:
    """What one more member fooled on one image makes, in points; no measurement tells less apart."""
    return 100 * max(row.alpha or (0.0,)) / row.images + 1e-3


def _iat(results: Results) -> Finding | None:
    row = results["figure10"].row("M") if "figure10" in results else None
    curve = dict(row.curve("ARC")) if row else {}
    if row is None or 1 not in curve or 8 not in curve:
        return None
    gain = curve[8] - curve[1]
    lines = [f"under ARC {curve[1]:.2f} with M = 1 and {curve[8]:.2f} with M = 8 ({_basis(row)})"]
    tight = dict(row.curve("tight"))
    if 1 in tight and 8 in tight:
        lines.append(f"under tight {tight[1]:.2f} and {tight[8]:.2f}")
    return Finding(gain < 3, f"They gain {gain:.2f} under ARC.", lines)


def _diversity(results: Results) -> Finding | None:
    once: dict[str, tuple[RowResult, float, float]] = {}  # by ensemble, which may stand in several rows
    for row in _rows(results, "figure4", "figure9"):
        arc, tight = (row.figure(column, 8) or row.figure(column) for column in ("ARC", "tight"))
        if arc is not None and tight is not None:
            once.setdefault(row.ensemble, (row, arc.measured, tight.measured))
    if not once:
        return None
    gaps = [a - t for _, a, t in once.values()]
    lines = [
        f"{row.ensemble}: ARC leaves {a:.2f}, tight {t:.2f} at eps 8/255 ({_basis(row)})" for row, a, t in once.values()
    ]
    return Finding(min(gaps) > NEAR, f"By {min(gaps):.2f} to {max(gaps):.2f} points.", lines)


def _floor(results: Results) -> Finding | None:
    """Judged by the attack at its usual effort; what less effort leaves is said as well."""
    found = _both(_rows(results, *results), "tight", "floor")
    hasty = [pair for pair in found if "quick" in pair[0].attacks.get("tight", "")]
    pairs = [pair for pair in found if pair not in hasty]
    if not pairs:
        return None
    gap = max(a.measured - b.measured for _, a, b in pairs)
    lines = _named(pairs, "{row}: {a:.2f} over {b:.2f} ({n})")
    lines += _named(hasty, "{row}: {a:.2f} over {b:.2f} with the preset quick ({n})")
    return Finding(gap <= NEAR, f"The gap is at most {gap:.2f} points over {_count(pairs, 'ensemble')}.", lines)


def _arc_wins(results: Results) -> Finding | None:
    """At the radius where ARC does worst."""
    once: dict[str, tuple[float, str]] = {}  # by ensemble, which may stand in several rows
    for row in _rows(results, "figure9", "figure4"):
        apgd, arc = dict(row.curve("APGD")), dict(row.curve("ARC"))
        if apgd and apgd.keys() == arc.keys():
            x = max(arc, key=lambda x: arc[x] - apgd[x])
            line = (
                f"{row.ensemble}: at eps {x:g}/255, where ARC does worst, it leaves {arc[x]:.2f} and APGD {apgd[x]:.2f}"
            )
            once.setdefault(row.ensemble, (arc[x] - apgd[x], f"{line} ({_basis(row)})"))
    if not once:
        return None
    worst = max(gap for gap, _ in once.values())
    summary = f"ARC leaves up to {worst:.2f} points more than APGD." if worst > 0 else "ARC leaves less everywhere."
    return Finding(worst <= NEAR, summary, [line for _, line in once.values()])


CLAIMS: dict[str, Callable[[Results], Finding | None]] = {
    "AdaptivePGD flatters BAT ensembles by 8 points and more.": _flattery,
    "ARC puts BAT ensembles below the single AT model.": _below_at,
    "Under ARC alpha = 1 is best: the second member only costs.": _alpha_one,
    "Ten random restarts (+RR) are no stronger than plain APGD.": _restarts,
    "ARC with G = 4 equals the full search.": _four_planes,
    "Eight independently trained members gain less than 3 points.": _iat,
    "ARC itself still flatters diversity-trained ensembles (ours).": _diversity,
    "The tight attack meets its floor (ours).": _floor,
    "ARC leaves no more than APGD on DVERGE, ADP and TRS, at any radius.": _arc_wins,
}
