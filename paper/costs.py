"""What an item costs, before it is run: passes counted from the recipe, divided by the measured passes per second."""

from __future__ import annotations

from paper.recipe import EnsembleRecipe, Item, Row
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
# Million multiply-adds a second on one H200, forward and backward. Attacks: 400,000 passes through a ResNet-20 in
# 2.58 s (TF32, results/bench), 13,370,000 of ResNet-18s in 119 s (its row of results/table1.json, counted as here,
# beside other jobs), 11,730 a second through a ResNet-18 at 224 pixels (results/throughput.json), 2,010,000 through
# EfficientNet-lite in 480 s (the rows of results/imagenet-sample.json, counted as here).
# Training: 8 passes of 128 images in 5.82 ms (ResNet-20) and 14.0 ms (ResNet-18, results/bench).
ATTACK = {
    "small": 400_000 / 2.58 * 40.6,
    "large": 13_370_000 / 119 * 555.4,
    "imagenet": 11_730 * 1814.1,
    "package": 2_010_000 / 480 * 530.0,
}
TRAIN = {"small": 128 * 8 / 5.82e-3 * 40.6, "large": 128 * 8 / 14.0e-3 * 555.4}
SAMPLE = 500  # images that the pretrained members are tried on
# Passes per image and epoch of methods that do not attack with PGD: ADP none; DVERGE 10 steps of distillation and two
# updates; TRS 3 searching steps and two points, each differentiated twice, which is what 47 ms for a step of three
# members on one H200 amount to (queue.json). Free training replays every batch.
METHOD_PASSES = {"adp": 1, "dverge": 12, "trs": 21}


def net(ensemble: EnsembleRecipe) -> str:
    return "resnet18-imagenet" if (ensemble.data, ensemble.arch) == ("imagenet", "resnet18") else ensemble.arch


def seconds(passes: float, ensemble: EnsembleRecipe, rates: dict[str, float]) -> float:
    size = MMACS[net(ensemble)]
    kind = "package" if ensemble.package else "large" if size > LARGE else "small"
    return passes * size / rates[ensemble.data if kind == "large" and ensemble.data in rates else kind]


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


def attack_passes(row: Row) -> float:
    """All measurements of a row on the whole test set, and the search for alpha where it has one."""
    spec = CATALOG[row.data]
    count, classes = SAMPLE if row.ensemble.package else spec.splits[spec.evaluation], len(spec.classes)
    runs = {m.run: m for m in row.measurements}.values()  # an attack that ignores alpha runs once for a whole sweep
    each = sum(passes(m.attack, len(m.members) if m.members else row.ensemble.members, classes) for m in runs)
    search = 0.0
    if row.alpha == "grid":
        search = FULL.grid * FULL.grid_images * passes(budget(row.data).apgd(), row.ensemble.members, classes)
    return each * count + search


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
    return seconds(attack_passes(row), row.ensemble, ATTACK)


def shown(item: Item, recipe: str) -> str:
    """Training and attacks in words, e.g. `train 1.2 h, attack 6 min`."""
    if not item.rows:
        return item.cost
    train = sum(training_seconds(ensemble, recipe) for ensemble in item.ensembles)
    attack = sum(attack_seconds(row) for row in item.rows)
    return (f"train {_time(train)}, " if train else "") + f"attack {_time(attack)}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"
