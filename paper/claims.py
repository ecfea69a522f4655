"""The claims at stake, each judged by what has been measured so far: confirmed, refuted, or undecided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from paper.floors import meets_floor
from paper.items import ITEMS
from paper.items.figures import ARC_ALPHA_ONE, IAT_GAIN
from paper.items.head_to_head import CLIMB, against_gradients, ahead_of_climb
from paper.judging import (
    NEAR,
    SINGLE,
    Case,
    Evidence,
    Finding,
    Gap,
    Judged,
    Pair,
    Results,
    all_of,
    basis,
    counted,
    gap_of,
    half_width,
    is_quick,
    is_single,
    label,
    named,
    reach,
    span,
    split,
)
from paper.recipe import Item
from paper.results import Figure, RowResult

OVERESTIMATE = 8  # points
USUAL, STEP = 0.9, 0.1  # the paper's alpha of the first member, and the step of the grid it was searched on
TABLES = ("table1", "table2")
FULL_SEARCH = {"cifar10": 9, "cifar100": 99, "imagenet": 999}
SEEN = "these are test images, which are scored as well"


def judge(results: Results, items: Mapping[str, Item] = ITEMS) -> list[Judged]:
    """Every claim. Rows of `items` that were not measured count as undecided; columns out of date do not count."""
    current = {name: replace(found, rows=tuple(row.current for row in found.rows)) for name, found in results.items()}
    found = Evidence(current, items)
    judged = []
    for claim, test in CLAIMS.items():
        finding = test(found)
        if not finding.cases:
            judged.append(Judged(claim, "not measured yet", evidence=finding.evidence))
        else:
            judged.append(Judged(claim, finding.verdict, finding.summary, finding.evidence))
    return judged


def _cases(pairs: list[Pair], single: list[Pair], gaps: list[Gap], limit: float, form: str) -> list[Case]:
    """A case for each pair, with the 95 % interval of its gap; one without a mixture decides nothing."""
    lines = [f"{named(pair, form)}: {gap:.2f} ± {half:.2f} points" for pair, (gap, half) in zip(pairs, gaps)]
    cases = [Case(line, holds) for line, holds in zip(lines, reach(limit, gaps))]
    return cases + [Case(f"{named(pair, form)}: {SINGLE}", None) for pair in single]


def _beats_at(found: Evidence) -> Finding:
    """Like for like: on one model AdaptivePGD is PGD."""
    columns = ("APGD", "AT: PGD")
    pairs, single = split(found.both(*columns, *TABLES))
    gaps = [gap_of(row, a, b, "APGD gain") for row, a, b in pairs]
    summary = f"Under APGD they keep more than the AT model, by {span(gaps)}." if gaps else ""
    form = "{row}: the ensemble keeps {a:.2f} under APGD, the AT model {b:.2f} under PGD ({n})"
    return Finding(summary, _cases(pairs, single, gaps, 0, form), found.missing({*columns}, *TABLES))


def _usual_alpha(found: Evidence) -> Finding:
    """On the grid of the search; which alpha would be best on other images is not known."""
    once: dict[tuple[str, str], Case] = {}
    chosen = []
    for row in found.rows(*TABLES):
        if row.alpha is None or row.figure("APGD") is None:
            continue
        line = f"{label(row)}: {row.alpha[0]:g}, {row.alpha_chosen_by or 'nobody knows how'} ({basis(row)})"
        chosen.append(row.alpha[0])
        near = abs(row.alpha[0] - USUAL) < STEP + 1e-9
        doubt = SINGLE if is_single(row) else SEEN if row.alpha_saw_test else ""
        case = Case(f"{line}: {doubt}", None) if doubt else Case(line, near)
        once.setdefault((row.ensemble or row.row, row.norm), case)
    summary = f"The searches chose {min(chosen):g} to {max(chosen):g} for the first member." if chosen else ""
    return Finding(summary, list(once.values()), found.missing({"APGD"}, *TABLES))


def _overestimate(found: Evidence) -> Finding:
    columns = ("APGD", "ARC")
    pairs, single = split(found.both(*columns, *TABLES))
    gaps = [gap_of(row, a, b, "Diff") for row, a, b in pairs]
    printed = [-paired.paper for row, _, _ in pairs if (paired := row.figure("Diff")) and paired.paper is not None]
    summary = f"APGD exceeds ARC by {span(gaps)}" if gaps else ""
    summary += f"; in the paper by {min(printed):.2f} to {max(printed):.2f} for the same networks." if printed else "."
    form = "{row}: {a:.2f} under APGD, {b:.2f} under ARC ({n})"
    cases = _cases(pairs, single, gaps, OVERESTIMATE, form)
    return Finding(summary, cases, found.missing({*columns}, *TABLES))


def _below_at(found: Evidence) -> Finding:
    """Like for like: ARC on both sides. What the AT model keeps under ARC may also stand in Table 4."""
    pairs, single, lacking = [], [], []
    for row, arc, pgd in found.both("ARC", "AT: PGD", *TABLES):
        alone = row.figure("AT: ARC") or _first_member(found, row)
        if is_single(row):
            single.append((row, arc, arc))
        elif alone is not None:
            pairs.append((row, arc, alone))
        else:
            lacking.append((row, arc, pgd))
    gaps = [gap_of(row, alone, arc, "ARC gain") for row, arc, alone in pairs]
    form = "{row}: under ARC the ensemble keeps {a:.2f}, the AT model {b:.2f} ({n})"
    cases = _cases(pairs, single, gaps, 0, form)
    form = "{row}: the ensemble keeps {a:.2f} under ARC, the AT model {b:.2f} under PGD, and ARC on it is missing ({n})"
    cases += [Case(named(pair, form), None) for pair in lacking]
    summary = f"By {span(gaps)}, both under ARC." if gaps else ""
    return Finding(summary, cases, found.missing({"ARC", "AT: PGD"}, *TABLES))


def _first_member(found: Evidence, row: RowResult) -> Figure | None:
    """The first member of the same ensemble under ARC, on the same images, from Table 4."""
    for other in found.rows("table4"):
        same = (other.ensemble, other.norm, other.images) == (row.ensemble, row.norm, row.images)
        if same and other.row.endswith("-f1"):
            return other.figure("ARC")
    return None


def _alpha_one(found: Evidence) -> Finding:
    sweeps: dict[str, tuple[RowResult, list[tuple[float, Gap]]]] = {}  # by what was measured, perhaps in two items
    for row in found.rows("figure3", "figure7", "figure6"):
        one = row.figure("ARC", 1.0)
        if row.axis == "alpha" and one is not None:
            others = [f for f in row.figures if f.column == "ARC" and f.x not in (None, 1.0)]
            gaps = [(f.x or 0.0, gap_of(row, one, f, ARC_ALPHA_ONE if f.x == USUAL else "")) for f in others]
            sweeps.setdefault(f"{row.ensemble} {row.curve('ARC')}", (row, gaps))
    decided = iter(reach(-NEAR, [gap for _, gaps in sweeps.values() for _, gap in gaps]))
    cases = []
    for row, gaps in sweeps.values():
        known = {x: next(decided) for x, _ in gaps}
        best, at = max((value, x) for x, value in row.curve("ARC"))
        name = row.row if row.norm in row.row else f"{row.norm} {row.row}"
        doubt = [f"{x:g}" for x, holds in known.items() if not holds]
        line = f"{name}: best {best:.2f} at alpha {at:g}, {dict(row.curve('ARC'))[1.0]:.2f} at 1 ({basis(row)})"
        line += f"; not decided at alpha {', '.join(doubt)}" if doubt else ""
        cases.append(Case(line, all_of(list(known.values()))))
    lost = max((-gap for _, gaps in sweeps.values() for _, (gap, _) in gaps), default=0.0)
    summary = (
        f"No other alpha gains more than {max(0.0, lost):.2f} points on the images of {counted(len(cases), 'sweep')}."
    )
    return Finding(summary, cases, found.missing({"ARC"}, "figure3", "figure7", "figure6", axis="alpha"))


def _restarts(found: Evidence) -> Finding:
    columns = ("APGD + RR", "APGD")
    pairs = found.both(*columns, "table3")
    gaps = [gap_of(*pair) for pair in pairs]
    values = [gap for gap, _ in gaps]
    summary = f"With restarts the ensembles keep {min(values):.2f} to {max(values):.2f} points more." if gaps else ""
    form = "{row}: {a:.2f} under APGD + RR, {b:.2f} under plain APGD ({n})"
    return Finding(summary, _cases(pairs, [], gaps, -NEAR, form), found.missing({*columns}, "table3"))


def _four_planes(found: Evidence) -> Finding:
    """On the images at hand: the two searches are one, but for the planes that the shorter one leaves out."""
    items = ("table5", "table5-cifar10", "table5-imagenet-sample")
    gaps, cases = [], []
    for row in found.rows(*items):
        curve = dict(row.curve("ARC"))
        if 4 in curve and len(curve) > 1:
            four, most = curve[4], max(curve)
            line = f"{label(row)}: {four:.2f} with G = 4, {curve[most]:.2f} with G = {most:g} ({basis(row)})"
            if most >= FULL_SEARCH.get(row.data, most):
                gaps.append(abs(four - curve[most]))
                cases.append(Case(line, gaps[-1] <= NEAR))
            else:
                cases.append(Case(f"{line}: far from all planes were tried", None))
    summary = f"They differ by at most {max(gaps):.2f} points over {counted(len(gaps), 'ensemble')}." if gaps else ""
    return Finding(summary, cases, found.missing({"ARC"}, *items))


def _iat(found: Evidence) -> Finding:
    missing = found.missing({IAT_GAIN}, "figure10")
    row = next((row for row in found.rows("figure10") if row.row == "M"), None)
    curve = dict(row.curve("ARC")) if row else {}
    if row is None or 1 not in curve or 8 not in curve:
        return Finding("", [], missing)
    one, eight = (next(f for f in row.figures if f.column == "ARC" and f.x == m) for m in (1, 8))
    gain, half = gap_of(row, eight, one, IAT_GAIN)
    line = f"under ARC {curve[1]:.2f} with M = 1 and {curve[8]:.2f} with M = 8 ({basis(row)})"
    tight = dict(row.curve("tight"))
    notes = [f"under tight {tight[1]:.2f} and {tight[8]:.2f}"] if 1 in tight and 8 in tight else []
    (most,) = reach(-3, [(-gain, half)])
    return Finding(f"They gain {gain:.2f} ± {half:.2f} points under ARC.", [Case(line, most)], missing, notes)


def _diversity(found: Evidence) -> Finding:
    once: dict[str, Pair] = {}  # by ensemble; of several rows the one measured best
    for row in sorted(found.rows("figure4", "figure9"), key=lambda r: (-r.images, is_quick(r))):
        arc, tight = (row.figure(column, 8) or row.figure(column) for column in ("ARC", "tight"))
        tight = tight or found.elsewhere(row, "tight")
        if arc is not None and tight is not None:
            once.setdefault(row.ensemble, (replace(row, row=row.ensemble), arc, tight))
    gaps = [gap_of(*pair) for pair in once.values()]
    values = [gap for gap, _ in gaps]
    form = "{row}: {a:.2f} under ARC, {b:.2f} under tight at eps 8/255 ({n})"
    return Finding(
        f"By {min(values):.2f} to {max(values):.2f} points." if gaps else "",
        _cases(list(once.values()), [], gaps, NEAR, form),
        found.missing({"ARC", "tight"}, "figure4", "figure9"),
    )


def _arc_wins(found: Evidence) -> Finding:
    """At every radius; the evidence is the radius where ARC does worst."""
    gaps: list[tuple[str, Gap, str]] = []  # ensemble, APGD - ARC, in words
    for row in found.rows("figure9", "figure4"):
        for x in dict.fromkeys(f.x for f in row.figures if f.column == "ARC"):
            arc, apgd = row.figure("ARC", x), row.figure("APGD", x)
            if arc is not None and apgd is not None:
                eps = row.eps if x is None else f"{x:g}/255"
                line = f"worst at eps {eps}, ARC {arc.measured:.2f} and APGD {apgd.measured:.2f} ({basis(row)})"
                gaps.append((row.ensemble, (apgd.measured - arc.measured, half_width(arc, apgd)), line))
    decided = reach(-NEAR, [gap for _, gap, _ in gaps])
    cases = []
    for ensemble in dict.fromkeys(name for name, _, _ in gaps):
        own = [(gap, line, holds) for (name, gap, line), holds in zip(gaps, decided) if name == ensemble]
        cases.append(Case(f"{ensemble}: {min(own, key=lambda o: o[0])[1]}", all_of([holds for _, _, holds in own])))
    most = -min((gap for _, (gap, _), _ in gaps), default=0.0)
    summary = f"Up to {most:.2f} points more survive ARC than APGD." if most > 0 else "Less survives ARC everywhere."
    return Finding(summary, cases, found.missing({"ARC", "APGD"}, "figure9", "figure4"))


def _climb_ahead(found: Evidence) -> Finding:
    """Over every attack and budget at which a rival ends lower than Climb with no more gradients."""
    rows = [row for row in found.rows("head-to-head") if against_gradients(row, CLIMB)]
    ahead = [
        (row, rival.measured - own.measured, half_width(own, rival), line)
        for row in rows
        for own, rival, line in ahead_of_climb(row)
    ]
    decided = reach(-NEAR, [(gap, half) for _, gap, half, _ in ahead])
    cases = []
    for row in rows:
        own = [(gap, line, holds) for (other, gap, _, line), holds in zip(ahead, decided) if other is row]
        worst = min(own)[1] if own else f"{row.row}: Climb is ahead of all (n = {row.images})"
        cases.append(Case(worst, all_of([holds for _, _, holds in own])))
    most = -min((gap for _, gap, _, _ in ahead), default=0.0)
    summary = f"The others end at most {most:.2f} points lower." if ahead else "None does." if rows else ""
    return Finding(summary, cases, found.missing({CLIMB}, "head-to-head"))


CLAIMS: dict[str, Callable[[Evidence], Finding]] = {
    "Under AdaptivePGD BAT ensembles beat the single AT model.": _beats_at,
    f"Their best alpha is near {USUAL:g}: they favour the robust member.": _usual_alpha,
    f"AdaptivePGD overestimates BAT ensembles by {OVERESTIMATE} points and more (our limit).": _overestimate,
    "ARC puts BAT ensembles below the single AT model.": _below_at,
    "Under ARC alpha = 1 is best: the second member only costs accuracy.": _alpha_one,
    "Ten random restarts (+RR) are no stronger than plain APGD.": _restarts,
    "ARC with G = 4 equals the full search.": _four_planes,
    "Eight independently trained members gain less than 3 points.": _iat,
    "ARC itself still overestimates diversity-trained ensembles (ours).": _diversity,
    "The tight attack meets its floor (ours).": meets_floor,
    "ARC is at least as strong as APGD on DVERGE, ADP and TRS, at any radius.": _arc_wins,
    f"No other attack gets more than {NEAR} points below Climb with as few gradients (ours).": _climb_ahead,
}
