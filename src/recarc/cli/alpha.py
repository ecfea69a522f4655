"""`recarc alpha`: the best sampling probabilities of an ensemble, chosen on some samples and scored on others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recarc.cli import options
from recarc.cli.options import number
from recarc.cli.output import alpha_text, percent, print_json, print_line, print_note, print_table
from recarc.errors import InputError, unknown

if TYPE_CHECKING:
    from recarc.ensemble import Member, RandomizedEnsemble
    from recarc.evaluation.result import Estimate
    from recarc.geometry import Ball
    from recarc.sampling import AttackedSamples, Choice, Gain, TwoMembers

METHODS = ("grid", "osp", "lp")
CERTIFIED = "certified"
CHOOSE_ON = ("half", "train")


def alpha(
    ensemble: options.EnsembleArgument,
    data: options.DataOption,
    eps: options.EpsOption,
    norm: options.NormOption = "linf",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Some of grid (the paper's), osp, lp and certified, separated by commas. "
            "By default the first three, but no grid of more than 1,000 points.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Grid points per side of the simplex.")] = 11,
    rounds: Annotated[int, typer.Option(help="Rounds of osp, and of lp after the vertices.")] = 10,
    preset: Annotated[str, typer.Option(help="Effort of the tight attack that judges every choice.")] = "quick",
    box: options.BoxOption = "0,1",
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of the data set: train by default, of which the images that training held out are used if they "
            "are known; with --choose-on train, test.",
            show_default=False,
        ),
    ] = None,
    choose_on: Annotated[
        str,
        typer.Option(
            help="half: choose on one half of the samples and score on the other. "
            "train: choose on training images, score on another SPLIT."
        ),
    ] = "half",
    data_dir: options.DataDirOption = None,
    limit: Annotated[int, typer.Option(help="Use only the first LIMIT samples.")] = 500,
    device: options.DeviceOption = "auto",
    trust_code: options.TrustCodeOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Choose alpha by up to three methods, and score each choice on other samples under the worst of all attacks.

    grid: the paper's search with AdaptivePGD. osp: projected subgradient descent with Climb in the loop. lp: a
    cutting-plane program over all patterns of fooled members found so far. certified: the highest floor that
    certificates prove (its own estimate is that floor). It also says what any alpha could gain over
    the best member alone and, for two members, whether randomizing helps at all. Intervals are 95 %.

    Example: `recarc alpha my-ensemble --data cifar10 --eps 8/255 --limit 1000`

    Example: `recarc alpha my-ensemble --data cifar10 --eps 8/255 --choose-on train`
    """
    named = _names(methods)
    split = _split_to_score_on(choose_on, split)
    radius, valid = number("--eps", eps), options.box(box)

    import recarc
    from recarc import sampling
    from recarc.runtime import use_device

    ball, judge = recarc.Ball(norm, radius, valid), recarc.Tight(preset)
    rec = recarc.load_ensemble(ensemble, use_device(device), trust_code=trust_code)
    named = named or _affordable(len(rec), points)
    if "grid" in named:
        sampling.check_grid(len(rec), points)
    sets = _Sets(data, data_dir, limit, rec, ball)
    samples, scored, chosen_on, scored_on = sets.to_choose_and_score(choose_on, split)
    watch = None if quiet else _print_progress
    search = {
        "grid": lambda: sampling.grid_search(rec, samples, points=points, watch=watch),
        "osp": lambda: sampling.osp(rec, samples, rounds=rounds, watch=watch),
        "lp": lambda: sampling.cutting_planes(rec, samples, rounds=rounds, watch=watch),
        CERTIFIED: lambda: sampling.certified(rec, samples, watch=watch),
    }
    choices = [search[name]() for name in named]
    for weights in _distinct(choices):
        samples.witnessed(rec.with_alpha(weights), judge)
    two = sampling.two_members(rec, samples, judge) if len(rec) == 2 else None
    best = best_choice(choices, samples, two)
    member = max(range(len(rec)), key=lambda i: samples.accuracy(_only(i, len(rec))))
    for weights in _distinct([*choices, best]):
        scored.witnessed(rec.with_alpha(weights), judge)
    sampling.cutting_planes(rec, scored, rounds=rounds)  # more patterns, which the bound on any alpha rests on
    two = sampling.two_members(rec, scored, judge) if len(rec) == 2 else None
    report = _Report(choices, best, scored, sampling.gain_over(member, best.alpha, scored), two, chosen_on, scored_on)
    if json_:
        print_json(report.to_json())
    else:
        report.print()


def _names(methods: str | None) -> list[str]:
    """The methods that were asked for; none if that was left open."""
    named = [] if methods is None else [name.strip() for name in methods.split(",")]
    for name in named:
        if name not in (*METHODS, CERTIFIED):
            raise unknown("method", name, (*METHODS, CERTIFIED))
    return named


def _affordable(members: int, points: int) -> list[str]:
    """Every method, but no grid of very many points."""
    from recarc.sampling import MOST_POINTS, grid_size

    if (size := grid_size(members, points)) <= MOST_POINTS:
        return list(METHODS)
    print_note(f"grid is left out: {points} points per side for {members} members would take {size:,} attacks")
    return [name for name in METHODS if name != "grid"]


def _split_to_score_on(choose_on: str, split: str | None) -> str:
    if choose_on not in CHOOSE_ON:
        raise unknown("--choose-on", choose_on, CHOOSE_ON)
    if choose_on == split:
        raise InputError(f"--choose-on {choose_on} scores on another split: leave out --split, or use --split test")
    return split or ("test" if choose_on == "train" else "train")


@dataclass(frozen=True)
class _Sets:
    """The samples to choose on and those to score on, never the same."""

    data: str
    data_dir: Path | None
    limit: int
    ensemble: RandomizedEnsemble
    ball: Ball

    def to_choose_and_score(self, choose_on: str, split: str) -> tuple[AttackedSamples, AttackedSamples, str, str]:
        """Both sets, and what each is, in words."""
        scored, scored_on = self._samples(split)
        if choose_on == "train":
            chosen, chosen_on = self._samples("train")
            return chosen, scored, f"{len(chosen.x)} {chosen_on}", f"{len(scored.x)} {scored_on}"
        one, other = scored.halves()
        return one, other, f"{len(one.x)} {scored_on}", f"{len(other.x)} others"

    def _samples(self, split: str) -> tuple[AttackedSamples, str]:
        from recarc.data.held_out import held_out
        from recarc.data.loading import load
        from recarc.sampling import AttackedSamples

        images, words = load(self.data, split, data_dir=self.data_dir), f"{split} images"
        if images.split == "train":
            found = held_out(images, self.ensemble.made_by)
            images, words = found.images, found.words
            if not found.known:
                print_note(f"these are {words}: --split test takes images that they have not seen")
        x, y = images.limit(self.limit).tensors()
        home = self.ensemble.device_of_members() or x.device
        return AttackedSamples(x.to(home), y.to(home), self.ball, search=self.search), words

    @cached_property
    def search(self) -> tuple[Member, ...] | None:
        """Accelerated copies of the members on a GPU, searched in float16 as `recarc evaluate` does."""
        from recarc.evaluation.prepare import resolved_precision
        from recarc.fast import accelerate

        device = self.ensemble.device_of_members()
        if device is None or resolved_precision("auto", self.ensemble, device, {}) != "float16":
            return None
        return tuple(accelerate(self.ensemble, "float16").members)


def best_choice(choices: list[Choice], samples: AttackedSamples, two: TwoMembers | None) -> Choice:
    """The choice of highest accuracy; where randomizing does not help, the better member alone if that is as good."""
    from recarc.sampling import Choice

    best = max(choices, key=lambda choice: samples.accuracy(choice.alpha))
    if two is not None and not two.helps:
        alone = _only(0 if two.e_1 <= two.e_2 else 1, 2)
        if samples.accuracy(alone) >= samples.accuracy(best.alpha):
            best = Choice("the analysis of two members", alone, samples.accuracy(alone), [])
    return best


def _only(member: int, members: int) -> list[float]:
    """The alpha that draws one member alone."""
    return [float(i == member) for i in range(members)]


def _distinct(choices: list[Choice]) -> list[list[float]]:
    return [list(alpha) for alpha in dict.fromkeys(tuple(choice.alpha) for choice in choices)]


def _print_progress(method: str, alpha: list[float], accuracy: float) -> None:
    print_note(f"{method}: alpha ({alpha_text(alpha)}) keeps {percent(accuracy)} %")


@dataclass(frozen=True)
class _Report:
    """What the command has to say, for people or as JSON."""

    choices: list[Choice]
    best: Choice
    scored: AttackedSamples
    gain: Gain
    two: TwoMembers | None
    chosen_on: str
    scored_on: str

    def to_json(self) -> dict[str, Any]:
        best, gain, two = self._accuracy(self.best), self.gain, self.two
        choices = {c.method: (c, self._accuracy(c)) for c in self.choices}
        return {
            "alpha": self.best.alpha,
            "robust_accuracy": best.value,
            "robust_interval": [best.low, best.high],
            "chosen_on": self.chosen_on,
            "scored_on": self.scored_on,
            "choices": {
                name: {
                    "alpha": c.alpha,
                    "believed": c.believed,
                    "robust_accuracy": e.value,
                    "robust_interval": [e.low, e.high],
                }
                for name, (c, e) in choices.items()
            },
            "gain": {
                "member": gain.member,
                "member_accuracy": gain.alone.value,
                "member_interval": [gain.alone.low, gain.alone.high],
                "gain": gain.gain.value,
                "gain_interval": [gain.gain.low, gain.gain.high],
                "at_most": gain.most.value,
                "at_most_interval": [gain.most.low, gain.most.high],
                "says": gain.sentence,
            },
            "two_members": two
            and {
                **asdict(two),
                **{f"{name}_interval": list(ends) for name, ends in two.intervals().items()},
                "p_r_ends": [0.0, two.p_r],
                "helps": two.helps,
                "identity": two.identity(self.best.alpha[0]),
                "says": two.sentence,
            },
        }

    def print(self) -> None:
        cells = []
        for choice in self.choices:
            e = self._accuracy(choice)
            interval = f"{percent(e.low)} to {percent(e.high)}"
            cells.append(
                [choice.method, alpha_text(choice.alpha), percent(choice.believed), percent(e.value), interval]
            )
        print_table(["method", "alpha", "own estimate %", "worst of all attacks %", "95 % interval"], cells)
        print_line(f"Chosen on {self.chosen_on}; scored on {self.scored_on}.")
        best = self._accuracy(self.best)
        print_line(
            f"Best: alpha = ({alpha_text(self.best.alpha, 4)}) by {self.best.method}, {percent(best.value)} % "
            f"[{percent(best.low)}, {percent(best.high)}] under the worst attack seen."
        )
        print_line(self.gain.sentence)
        if self.two is not None:
            print_line(self.two.identity(self.best.alpha[0]))
            print_line(self.two.sentence)

    def _accuracy(self, choice: Choice) -> Estimate:
        from recarc.evaluation.result import estimate

        return estimate(self.scored.scores(choice.alpha))
