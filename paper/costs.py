"""What an item costs, before it is run: passes counted from the recipe, divided by the measured passes per second."""

from __future__ import annotations

from collections.abc import Mapping

from paper.recipe import EnsembleRecipe, Item, Measurement, Row
from paper.scale import FULL
from paper.settings import budget
from paper.setup import shipped
from recarc.attacks import ARC, Attack, CarliniWagner, RandomAttacker, Restarts, Tight
from recarc.attacks.pgd import GradientAttack
from recarc.data.catalog import CATALOG
from recarc.training.recipes import recipe_for

# Million multiply-adds of one image through one member, counted on the registered architectures.
MMACS = {
    "resnet20": 40.6,
    "mobilenetv1": 46.4,
    "vgg16": 313.2,
    "resnet18": 555.4,
    "wrn28_4": 845.6,
    "resnet18-imagenet": 1814.1,
    "efficientnet-lite": 530.0,  # the mean of lite0, lite1 and lite2 as published
}
LARGE = 100  # million multiply-adds: from here on a GPU is busy with arithmetic rather than with launches
# Million multiply-adds a second on one H200, forward and backward. Attacks: 400,000 passes through ResNet-20s in
# 0.886 s (AdaptivePGD in float16, results/bench-attacks-h200.json), 13,370,000 of ResNet-18s in 119 s (its row of
# results/table1.json, counted as here, beside other jobs), 11,730 a second through a ResNet-18 at 224 pixels
# (results/throughput.json), 2,010,000 through EfficientNet-lite in 480 s (the rows of results/imagenet-sample.json,
# counted as here).
# Training: 8 passes of 128 images in 5.82 ms (ResNet-20) and 14.0 ms (ResNet-18, results/bench).
ATTACK = {
    "small": 400_000 / 0.886 * 40.6,
    "large": 13_370_000 / 119 * 555.4,
    "imagenet": 11_730 * 1814.1,
    "package": 2_010_000 / 480 * 530.0,
}
# What a pass, counted in full, takes on small networks, where one of AdaptivePGD is 1. ARC leaves out samples and
# planes: 3,870,000 passes took 1.04 s in the same benchmark. AC&W took 142 s for 9,900,000, on 1,000 images beside
# three jobs (queue.json), which slow it as in schedule.py. Tight took half of what is counted there; it is left at 1,
# as members that are more robust than this pair take longer. The rate of large networks is that of a whole row, with
# all that is left out.
WEIGHTS: dict[type[Attack], float] = {ARC: 0.12, CarliniWagner: 3.5}
RUN = 1  # second that an attack takes beside its passes: rows of many short runs, such as figure9's
SLOWER_NETS = {"vgg16": 1.75}  # its row of table1 took 479 s alone (queue.json), where its arithmetic asks for 272
TRAIN = {"small": 128 * 8 / 5.82e-3 * 40.6, "large": 128 * 8 / 14.0e-3 * 555.4}
SAMPLE = 500  # images that the pretrained members are tried on
# Passes per image and epoch of methods that do not attack with PGD: ADP none; DVERGE 10 steps of distillation and two
# updates; TRS 3 searching steps and two points, each differentiated twice, which is what 47 ms for a step of three
# members on one H200 amount to (queue.json). Free training replays every batch.
METHOD_PASSES = {"adp": 1, "dverge": 12, "trs": 21}


def net(ensemble: EnsembleRecipe) -> str:
    return "resnet18-imagenet" if (ensemble.data, ensemble.arch) == ("imagenet", "resnet18") else ensemble.arch


def seconds(passes: float, ensemble: EnsembleRecipe, rates: dict[str, float]) -> float:
    name = net(ensemble)
    kind = "package" if ensemble.package else "large" if busy(ensemble) else "small"
    rate = rates[ensemble.data if kind == "large" and ensemble.data in rates else kind]
    return passes * MMACS[name] / rate * SLOWER_NETS.get(name, 1)


def passes(attack: Attack, members: int, classes: int) -> float:
    """Forward-and-backward passes per sample, over all members; attacks that stop early are counted in full."""
    if isinstance(attack, ARC):
        return attack.steps * members * ((attack.planes or classes - 1) + members / 3)
    if isinstance(attack, RandomAttacker):
        return members * passes(attack.attack, 1, classes)
    if isinstance(attack, Restarts):
        return attack.n * passes(attack.attack, members, classes)
    if isinstance(attack, CarliniWagner):
        return attack.search_steps * attack.steps * (members if attack.member is None else 1)
    if isinstance(attack, Tight):
        effort = {"quick": 40, "standard": 120, "thorough": 1500}[attack.preset]
        return members * (effort + attack.steps * 5)
    if isinstance(attack, GradientAttack):
        return attack.steps * (1 if hasattr(attack, "member") else members)
    return float(members)


def attack_passes(row: Row, weights: Mapping[type[Attack], float] | None = None) -> float:
    """All measurements of a row on the whole test set, and the search for alpha where it has one."""
    spec = CATALOG[row.data]
    count, classes = SAMPLE if row.ensemble.package else spec.splits[spec.evaluation], len(spec.classes)
    each = 0.0
    for m in runs(row):
        attack = m.attack.attack if isinstance(m.attack, RandomAttacker) else m.attack
        weight = (weights or {}).get(type(attack), 1.0)
        each += weight * passes(m.attack, len(m.members) if m.members else row.ensemble.members, classes)
    search = 0.0
    if row.alpha == "grid":
        search = FULL.grid * FULL.grid_images * passes(budget(row.data).apgd(), row.ensemble.members, classes)
    return each * count + search


def runs(row: Row) -> list[Measurement]:
    """One measurement for each run of an attack: one that ignores alpha runs once for a whole sweep."""
    return list({m.run: m for m in row.measurements}.values())


def training_passes(ensemble: EnsembleRecipe, recipe: str) -> float:
    """Forward-and-backward passes through a member to train an ensemble from scratch."""
    method, start, recipe = ensemble.method, ensemble.start, ensemble.recipe or recipe
    used = recipe_for(recipe, method, ensemble.data, ensemble.arch).changed(dict(ensemble.changes.get(recipe, {})))
    each = used.replays if method == "free" else METHOD_PASSES.get(method, used.attack_steps + 1)
    passes = used.epochs + used.copies * used.attack_steps if used.copies else used.epochs * each
    own = CATALOG[ensemble.data].splits["train"] * passes
    if start is None:
        return ensemble.members * own
    return training_passes(start, recipe) + (ensemble.members - start.members) * own


def training_seconds(ensemble: EnsembleRecipe, recipe: str) -> float:
    """On one H200, all members one after another; nothing for what a package has or comes with the repository."""
    start, recipe = ensemble.start, ensemble.recipe or recipe
    if ensemble.package or shipped(ensemble, recipe) is not None:
        return 0.0
    own = training_passes(ensemble, recipe) - (training_passes(start, recipe) if start is not None else 0)
    return seconds(own, ensemble, TRAIN) + (training_seconds(start, recipe) if start is not None else 0)


def busy(ensemble: EnsembleRecipe) -> bool:
    """Whether training it keeps a GPU busy, so that what runs beside it only slows it down."""
    return MMACS[net(ensemble)] > LARGE


def attack_seconds(row: Row) -> float:
    """On one H200, all measurements of a row on all images."""
    weights = {} if row.ensemble.package or busy(row.ensemble) else WEIGHTS
    return seconds(attack_passes(row, weights), row.ensemble, ATTACK) + RUN * len(runs(row))


def shown(item: Item, recipe: str) -> str:
    """Training and attacks in words, e.g. `train 1.2 h, attack 6 min`."""
    if not item.rows:
        return item.cost
    train = sum(training_seconds(ensemble, recipe) for ensemble in item.ensembles)
    attack = sum(attack_seconds(row) for row in item.rows)
    return (f"train {_time(train)}, " if train else "") + f"attack {_time(attack)}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"
