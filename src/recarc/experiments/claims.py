"""The claims at stake, each judged by the results files that are there: confirmed, refuted, or not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from recarc.experiments.results import Figure, ItemResult, RowResult

Results = Mapping[str, ItemResult]
NEAR = 0.5  # points: what two attacks may differ by and still be called equal, and the verdict's own limit
Found = tuple[bool, str] | None


@dataclass(frozen=True)
class Judged:
    claim: str
    verdict: str  # confirmed, refuted or not measured
    evidence: str

    def markdown(self) -> str:
        return f"- **{self.claim}** {self.verdict.capitalize()}. {self.evidence}".rstrip()


def judge(results: Results) -> list[Judged]:
    judged = []
    for claim, test in CLAIMS.items():
        found = test(results)
        verdict = "not measured yet" if found is None else "confirmed" if found[0] else "refuted"
        judged.append(Judged(claim, verdict, "" if found is None else found[1]))
    return judged


def _rows(results: Results, *items: str) -> Iterator[RowResult]:
    for item in items:
        yield from results[item].rows if item in results else ()


def _both(rows: Iterator[RowResult], one: str, other: str) -> list[tuple[RowResult, Figure, Figure]]:
    """Rows with both columns; an ensemble that stands in two tables with the same figures counts once."""
    unique: dict[tuple[object, ...], tuple[RowResult, Figure, Figure]] = {}
    for row in rows:
        a, b = row.figure(one), row.figure(other)
        if a is not None and b is not None:
            unique.setdefault((row.ensemble or row.row, row.norm, a.measured, b.measured), (row, a, b))
    return list(unique.values())


def _named(pairs: list[tuple[RowResult, Figure, Figure]], form: str) -> str:
    told = [form.format(row=_label(row), n=_basis(row), a=a.measured, b=b.measured) for row, a, b in pairs]
    return "; ".join(told) + "."


def _label(row: RowResult) -> str:
    """A row's name; of one that is called after its norm alone, the data too."""
    return f"{row.data} {row.row}" if row.row in ("l2", "linf") else row.row


def _basis(row: RowResult) -> str:
    """What a figure rests on: how many images, and how the members were trained."""
    return f"n = {row.images}, {row.recipe}" if row.recipe else f"n = {row.images}"


def _randomized(
    pairs: list[tuple[RowResult, Figure, Figure]],
) -> tuple[list[tuple[RowResult, Figure, Figure]], str]:
    """Without the rows in which alpha is 1 for one member, which is then all there is; and a sentence on those."""
    single = [row.row for row, _, _ in pairs if row.alpha is not None and max(row.alpha) == 1]
    left = [pair for pair in pairs if pair[0].row not in single]
    if not single:
        return left, ""
    return left, f" Left out, because the search for alpha chose the first member alone: {', '.join(single)}."


def _flattery(results: Results) -> Found:
    pairs, without = _randomized(_both(_rows(results, "table1", "table2"), "APGD", "ARC"))
    if not pairs:
        return None
    gaps = [a.measured - b.measured for _, a, b in pairs]
    text = f"APGD less ARC is {min(gaps):.2f} to {max(gaps):.2f} points over {len(gaps)} ensembles, 8 or more on "
    text += f"{sum(gap >= 8 - NEAR for gap in gaps)} of them: "
    return min(gaps) >= 8 - NEAR, text + _named(pairs, "{row} {a:.2f} against {b:.2f} ({n})") + without


def _below_at(results: Results) -> Found:
    pairs, without = _randomized(_both(_rows(results, "table1", "table2"), "ARC", "AT: PGD"))
    if not pairs:
        return None
    text = _named(pairs, "{row}: ARC leaves the ensemble {a:.2f}, PGD leaves AT {b:.2f} ({n})")
    return all(a.measured < b.measured for _, a, b in pairs), text + without


def _alpha_one(results: Results) -> Found:
    curves: dict[str, tuple[str, str, list[tuple[float, float]]]] = {}  # by what was measured, which may stand twice
    for row in _rows(results, "figure3", "figure7", "figure6"):
        if row.axis == "alpha" and row.curve("ARC"):
            name = row.row if row.norm in row.row else f"{row.norm} {row.row}"
            curves.setdefault(f"{row.ensemble} {row.curve('ARC')}", (name, _basis(row), row.curve("ARC")))
    if not curves:
        return None
    best = [
        (name, n, *max(curve, key=lambda p: (p[1], p[0])), dict(curve).get(1.0, 0.0))
        for name, n, curve in curves.values()
    ]
    text = "; ".join(f"{name}: best {v:.2f} at alpha {x:g}, {one:.2f} at 1 ({n})" for name, n, x, v, one in best)
    return all(v - one <= NEAR for _, _, _, v, one in best), text + "."


def _restarts(results: Results) -> Found:
    pairs = _both(_rows(results, "table3"), "APGD + RR", "APGD")
    if not pairs:
        return None
    return all(a.measured >= b.measured - NEAR for _, a, b in pairs), _named(
        pairs, "{row}: +RR leaves {a:.2f}, plain APGD {b:.2f} ({n})"
    )


def _four_planes(results: Results) -> Found:
    found = []
    for row in _rows(results, "table5", "table5-cifar10", "table5-imagenet-sample"):
        curve = dict(row.curve("ARC"))
        if 4 in curve and len(curve) > 1:
            found.append((row, curve[4], max(curve), curve[max(curve)]))
    if not found:
        return None
    text = "; ".join(
        f"{_label(row)}: {four:.2f} with G = 4, {last:.2f} with G = {most:g} ({_basis(row)})"
        for row, four, most, last in found
    )
    return all(abs(four - last) <= max(NEAR, _one_more(row)) for row, four, _, last in found), text + "."


def _one_more(row: RowResult) -> float:
    """What one more member fooled on one image makes, in points; no measurement tells less apart."""
    return 100 * max(row.alpha or (0.0,)) / row.images + 1e-3


def _iat(results: Results) -> Found:
    row = results["figure10"].row("M") if "figure10" in results else None
    curve = dict(row.curve("ARC")) if row else {}
    if row is None or 1 not in curve or 8 not in curve:
        return None
    gain = curve[8] - curve[1]
    return (
        gain < 3,
        f"Under ARC {curve[1]:.2f} with M = 1 and {curve[8]:.2f} with M = 8: {gain:+.2f} ({_basis(row)}).",
    )


def _diversity(results: Results) -> Found:
    once: dict[str, tuple[RowResult, float, float]] = {}  # by ensemble, which may stand in several rows
    for row in _rows(results, "figure4", "figure9"):
        arc, tight = (row.figure(column, 8) or row.figure(column) for column in ("ARC", "tight"))
        if arc is not None and tight is not None:
            once.setdefault(row.ensemble, (row, arc.measured, tight.measured))
    found = list(once.values())
    if not found:
        return None
    text = "; ".join(
        f"{row.ensemble}: ARC leaves {a:.2f}, tight {t:.2f} at eps 8/255 ({_basis(row)})" for row, a, t in found
    )
    return all(a - t > NEAR for _, a, t in found), text + "."


def _arc_wins(results: Results) -> Found:
    """At the radius where ARC does worst."""
    found: dict[str, tuple[RowResult, float, float, float]] = {}  # by ensemble, which may stand in several rows
    for row in _rows(results, "figure9", "figure4"):
        apgd, arc = dict(row.curve("APGD")), dict(row.curve("ARC"))
        if apgd and apgd.keys() == arc.keys():
            worst = max(arc, key=lambda x: arc[x] - apgd[x])
            found.setdefault(row.ensemble, (row, worst, arc[worst], apgd[worst]))
    if not found:
        return None
    text = "; ".join(
        f"{row.ensemble}: at eps {x:g}/255, where ARC does worst, it leaves {arc:.2f} and APGD {apgd:.2f} "
        f"({_basis(row)})"
        for row, x, arc, apgd in found.values()
    )
    return all(arc <= apgd + NEAR for _, _, arc, apgd in found.values()), text + "."


def _floor(results: Results) -> Found:
    """Judged by the attack at its usual effort; what less effort leaves is said as well."""
    found = _both(_rows(results, *results), "tight", "floor")
    hasty = [pair for pair in found if "quick" in pair[0].attacks.get("tight", "")]
    pairs = [pair for pair in found if pair not in hasty]
    if not pairs:
        return None
    gaps = [a.measured - b.measured for _, a, b in pairs]
    text = f"The gap is at most {max(gaps):.2f} points over {len(gaps)} ensembles: "
    text += _named(pairs, "{row} {a:.2f} over {b:.2f} ({n})")
    if hasty:
        text += " With the preset quick: " + _named(hasty, "{row} {a:.2f} over {b:.2f} ({n})")
    return max(gaps) <= NEAR, text


CLAIMS: dict[str, Callable[[Results], Found]] = {
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
