"""What an item costs, before it is run: passes counted from the recipe, times what a pass was measured to take."""

from __future__ import annotations

from recarc.attacks import ARC, Attack, CarliniWagner, RandomAttacker, Restarts, Tight
from recarc.attacks.pgd import GradientAttack
from recarc.data.catalog import CATALOG
from recarc.experiments.recipe import Item, Made, Row

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
# Measured on one H200: 400,000 forward and backward passes through a ResNet-20 in 2.58 s (TF32, results/speed.json),
# and 110 epochs of adversarial training with 7 steps on CIFAR-10 in 258 s (results/train.json). Other nets are scaled
# by multiply-adds.
GRADIENT = 2.58 / 400_000
EPOCH_IMAGE = 258 / 110 / 49_000
SAMPLE = 500  # images that the pretrained members are tried on
EPOCHS = {"resnet20": 110, "mobilenetv1": 110}  # of the fast recipe; the larger nets 30


def relative(made: Made) -> float:
    """Multiply-adds of a member in those of a ResNet-20."""
    name = "resnet18-imagenet" if made.data == "imagenet" and made.arch == "resnet18" else made.arch
    return MMACS[name] / MMACS["resnet20"]


def passes(attack: Attack, members: int, classes: int) -> float:
    """Forward-and-backward passes a sample, over all members; attacks that stop early are counted in full."""
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


def row_seconds(row: Row, images: int | None = None) -> float:
    """Seconds of attacks on `images` (all test images by default)."""
    spec = CATALOG[row.data]
    count = images or (SAMPLE if row.made.package else spec.splits[spec.evaluation])
    total = 0.0
    for m in row.measurements:
        members = len(m.members) if m.members else row.made.members
        total += passes(m.attack, members, len(spec.classes))
    return total * count * GRADIENT * relative(row.made)


def training_seconds(made: Made, recipe: str) -> float:
    """Seconds to train an ensemble, all members one after another."""
    if made.package:
        return 0.0
    epochs = made.changes.get("epochs", 200 if recipe == "paper" else EPOCHS.get(made.arch, 30))
    own = made.members - (made.start.members if made.start else 0)
    first = training_seconds(made.start, recipe) if made.start else 0.0
    if made.method == "free":
        epochs = 22.5
    return first + own * float(epochs) * CATALOG[made.data].splits["train"] * EPOCH_IMAGE * relative(made)


def shown(item: Item, recipe: str) -> str:
    """Training and attacks in words, e.g. `train 0.6 h, attack 0.1 h`."""
    if not item.rows:
        return "seconds"
    train = sum(training_seconds(made, recipe) for made in item.ensembles)
    return f"train {train / 3600:.1f} h, attack {sum(row_seconds(row) for row in item.rows) / 3600:.1f} h"
