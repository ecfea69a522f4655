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
    first = (
        f"{_in_a_word(some, helping)}: of {_counted_ensembles(board)}{seeds}, {_keep(helping)} "
        f"more under the strongest attack than the best member does alone, {_keep(hurting)} less, and "
        f"{len(some) - len(helping) - len(hurting)} cannot be told apart from it (paired intervals, corrected for "
        "the number of comparisons)."
    )
    largest = max(helping or some, key=lambda kind: kind.gain[0])
    what, warning = "best result", ""
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
    left_out = f"; {hidden} more hide{'s' * (hidden == 1)} gradients and may keep less than that" if hidden else ""
    more = [100 * (kind.rival(name) or 0.0) - 100 * kind.tight for kind in known]
    words = (
        f"{rival}, which costs all of them per query, keeps more than drawing one in "
        f"{sum(value > 0 for value in more)} of {_several(len(more), 'ensemble')} at {100 * BROKEN:.0f} % or more"
        f"{_clearly(known, name)}: by {np.median(more):+.2f} points in the median, {min(more):+.2f} to "
        f"{max(more):+.2f}{left_out}"
    )
    singles = [(kind, board.single(kind.rows[0], kind.rows[0].drawn)) for kind in known]
    large = [(kind, one) for kind, one in singles if one is not None and one != board.single(kind.rows[0])]
    if large:
        norms = " and ".join(sorted({kind.rows[0].norm for kind, _ in large}))
        ahead = sum(one.tight["value"] > (kind.rival(name) or 0.0) for kind, one in large)
        words += (
            f"; one larger network that costs no more than all members keeps more than the {name} in "
            f"{ahead} of {len(large)} ({norms}; {_trained_alike(large)})"
        )
    return [f"{words}."]


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


def _in_a_word(some: list[Kind], helping: list[Kind]) -> str:
    """A gain that is small even at the upper end of its interval is little, if that holds for all."""
    if not helping:
        return "Not so far"
    return "Little, if at all" if max(kind.gain[2] for kind in some) < AIM else "Perhaps"


def _counted_ensembles(board: Board) -> str:
    """How many ensembles are counted, and which, if some are left out."""
    one = len(board.counted) == 1
    broken, masked = any(kind.tight < BROKEN for kind in board.kinds), any(kind.masked for kind in board.kinds)
    words = [f"keep{'s' * one} {100 * BROKEN:.0f} % or more"] * broken + [f"hide{'s' * one} no gradients"] * masked
    if any(kind.counts and kind not in board.counted for kind in board.kinds):
        words.append(f"{'was' if one else 'were'} attacked on {board.counted[0].rows[0].samples:,} images")
    which = f" that {' and '.join(words)}" if words else ""
    return f"{_several(len(board.counted), 'randomized ensemble')}{which}"


def _one_network(board: Board) -> list[str]:
    """How many keep more than one network of their cost, and whether that one was trained for as long."""
    compared, more = board.against_one_network()
    if not compared:
        return []
    pairs = [(kind, one) for kind in compared if (one := board.single(kind.rows[0]))]
    return [
        f"Of {_several(len(compared), 'ensemble')} that can be compared with one network of the same cost per query, "
        f"{_keep(more)} clearly more; {_trained_alike(pairs)}."
    ]


def _trained_alike(pairs: list[tuple[Kind, Row]]) -> str:
    """Of how many of these pairs it is known that network and members were trained for as many epochs."""
    alike = sum(kind.rows[0].epochs == one.epochs is not None for kind, one in pairs)
    which = "all" if alike == len(pairs) else alike or "none"
    return f"the network is known to have had as many epochs as each member in {which} of these"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _keep(kinds: list[Kind]) -> str:
    return f"{len(kinds) or 'none'} {'keep' if kinds[1:] else 'keeps'}"
