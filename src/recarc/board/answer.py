"""What the rows of a board say, in words: does randomizing help?"""

from __future__ import annotations

import numpy as np

from recarc.board.boards import Board
from recarc.board.kinds import BROKEN, Kind, Over, counted
from recarc.board.rows import Row
from recarc.evaluation.intervals import holm, p_value

AIM = 0.02  # a gain that would matter: two points


def answer(board: Board) -> str:
    """Does any randomized ensemble help? In two sentences.

    Never yes: at its floor, the mean of what the members keep alone, no ensemble keeps more than the best of them.
    """
    some, helping, hurting = board.counted, board.helping(), board.hurting()
    if not board.kinds:
        return "No randomized ensemble is on this board yet."
    if not some:
        return f"Not so far: no randomized ensemble here keeps {100 * BROKEN:.0f} % or more and hides no gradients."
    trained = sum(len(kind.rows) for kind in some)
    seeds = f" ({trained} with their seeds)" if trained > len(some) else ""
    ensembles = f"ensemble{'s' * (len(some) > 1)}{_that_count(board)}"
    first = (
        f"{_in_a_word(helping)}: of {len(some)} randomized {ensembles}{seeds}, {_keep(helping)} "
        f"more under the strongest attack than their best member does alone, {_keep(hurting)} less, and "
        f"{len(some) - len(helping) - len(hurting)} cannot be told apart from it (paired intervals, corrected for "
        "the number of comparisons)."
    )
    largest = max(helping or some, key=lambda kind: kind.gain[0])
    what, warning = "least loss", ""
    if largest.gain[0] >= 0:
        what, warning = "largest gain", "; no gain is certain, as every one lies between figure and floor"
    return f"{first} The {what} is {largest.sentence}{warning}."


def own(board: Board) -> str:
    """What the methods of recarc gain, over their best member and over independent members; nothing without any."""
    found = []
    for kind in board.counted:
        if kind.rows[0].ours:
            over = board.over(kind.rows[0])
            against = f", {_points(over.tight)} against {over.rival} with as many members" if over else ""
            seeds = counted(len(kind.rows))
            found.append(f"{kind.rows[0].kind} ({seeds}) {_points(kind.gain)} against its best member{against}")
    return f"recarc's own methods: {'; '.join(found)} (points)." if found else ""


def _points(figure: tuple[float, float, float]) -> str:
    value, low, high = (100 * end for end in figure)
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def remarks(board: Board) -> list[str]:
    """recarc's own methods; other ways to use the same operations; then each kind against independent members."""
    mine = own(board)
    return [*([mine] if mine else []), *rivals(board), *(over.sentence for over in comparisons(board))]


def comparisons(board: Board) -> list[Over]:
    """Each kind that counts against independently trained members, where these are on the board."""
    return [over for kind in board.counted if (over := board.over(kind.rows[0])) is not None]


def rivals(board: Board) -> list[str]:
    """One network of the same cost; then what average and vote keep more than drawing, where there is something to."""
    return [
        *_one_network(board),
        *_more_than_drawing(board, "Averaging the members' probabilities", "average"),
        *_more_than_drawing(board, "A majority vote of the members", "vote"),
    ]


def _more_than_drawing(board: Board, rival: str, name: str) -> list[str]:
    """One sentence, over the kinds whose rival is known. One that hides gradients counts only if it keeps less.

    What it keeps is too high, if anything.
    """
    measured = _with_rival(board.counted, name)
    known = [kind for kind in measured if not kind.rival_masked(name) or (kind.rival(name) or 0.0) < kind.tight]
    if not known:
        return []
    hidden = len(measured) - len(known)
    left_out = f"; {hidden} more {'do' if hidden > 1 else 'does'} so far, but hide{'s' * (hidden == 1)} gradients"
    more = [100 * (kind.rival(name) or 0.0) - 100 * kind.tight for kind in known]
    words = (
        f"{rival}, which costs all of them per query, keeps more than drawing one in "
        f"{sum(value > 0 for value in more)} of {len(more)} ensembles that keep {100 * BROKEN:.0f} % or more"
        f"{_clearly(known, name)}: "
        f"by {np.median(more):+.2f} points in the median, {min(more):+.2f} to {max(more):+.2f}{left_out * bool(hidden)}"
    )
    singles = [(kind, board.single(kind.rows[0], kind.rows[0].drawn)) for kind in known]
    large = [(kind, one) for kind, one in singles if one is not None and one != board.single(kind.rows[0])]
    if large:
        norms = " and ".join(sorted({kind.rows[0].norm for kind, _ in large}))
        ahead = sum(one.tight["value"] > (kind.rival(name) or 0.0) for kind, one in large)
        words += (
            f"; one larger network that costs no more than all members keeps more than the {name} in "
            f"{ahead} of {len(large)} ({norms}{_trained_otherwise(large)})"
        )
    return [f"{words}."]


def _trained_otherwise(pairs: list[tuple[Kind, Row]]) -> str:
    """How many of these networks are known to have been trained for more or fewer epochs than the members."""
    known = [(mine, one.epochs) for kind, one in pairs if (mine := kind.rows[0].epochs) and one.epochs]
    other = sum(mine != theirs for mine, theirs in known)
    return f"; {other} trained for more or fewer epochs than the members" if other else ""


def _with_rival(kinds: list[Kind], name: str) -> list[Kind]:
    """Those whose average or vote is known; of several that share one, the one that keeps most if a member is drawn."""
    found: dict[object, Kind] = {}
    for kind in sorted(kinds, key=lambda kind: kind.tight):
        if kind.rival(name) is not None:
            found[kind.network(name)] = kind
    return list(found.values())


def _clearly(kinds: list[Kind], name: str) -> str:
    """In how many the difference is clear, of those that hold what their rival keeps at each sample."""
    differences = [found for kind in kinds if (found := kind.over_drawing(name)) is not None]
    if not differences:
        return ""
    clear = holm([p_value(*ends) for _, *ends in differences])
    more = sum(sure and value > 0 for sure, (value, *_) in zip(clear, differences))
    where = "" if len(differences) == len(kinds) else f" of the {len(differences)} with all samples recorded"
    return f" (clearly in {more}{where})"


def _in_a_word(helping: list[Kind]) -> str:
    """A gain that is small even at the upper end of its interval is little."""
    if not helping:
        return "Not so far"
    return "Little, if at all" if max(kind.gain[2] for kind in helping) < AIM else "Perhaps"


def _that_count(board: Board) -> str:
    """Which ensembles are counted, if some are left out."""
    broken = any(kind.tight < BROKEN for kind in board.kinds)
    words = [f"keep {100 * BROKEN:.0f} % or more"] * broken + ["hide no gradients"] * any(k.masked for k in board.kinds)
    return f" that {' and '.join(words)}" if words else ""


def _one_network(board: Board) -> list[str]:
    """How many keep more than one network of their cost, and whether that one was trained for as long."""
    compared, more = board.against_one_network()
    if not compared:
        return []
    words = (
        f"Of {len(compared)} ensembles that can be compared with one network of the same cost per query, {_keep(more)} "
        "clearly more"
    )
    singles = [(kind.rows[0].epochs, one.epochs) for kind in compared if (one := board.single(kind.rows[0]))]
    other = [(mine, theirs) for mine, theirs in singles if mine and theirs and mine != theirs]
    if other:
        members, networks = (_or(sorted({pair[k] for pair in other}, key=float)) for k in (0, 1))
        have = "have" if len(other) > 1 else "has"
        words += (
            f"; of these, {len(other)} {have} members that were trained for {members} epochs, and the network for "
            f"{networks}"
        )
    return [f"{words}."]


def _or(values: list[str]) -> str:
    return " or ".join([", ".join(values[:-1]), values[-1]] if values[1:] else values)


def _keep(kinds: list[Kind]) -> str:
    return f"{len(kinds) or 'none'} {'keep' if kinds[1:] else 'keeps'}"
