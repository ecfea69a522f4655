"""What is known about every named image set: sizes, class names, statistics, where it is on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recarc.errors import InputError, unknown

DIGIT_NAMES = tuple(str(i) for i in range(10))
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_NAMES = tuple(_CIFAR100.split())
FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class Spec:
    """A named image set. `splits` maps each split to its official number of images."""

    name: str
    title: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...]
    splits: Mapping[str, int]
    evaluation: str = "test"  # the split that a file holds whose name says nothing else
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of splits
    folders: tuple[str, ...] = ()  # other names of its folder
    hub: str | None = None
    hub_config: str | None = None
    revision: str | None = None  # the commit of `hub` that is downloaded; None: the newest
    label_column: str = "label"
    mean: tuple[float, ...] | None = None  # per channel, of the train split
    std: tuple[float, ...] | None = None
    crop: bool = True  # while training, at random after padding; not where all images are centred alike
    # Paper: flips for all sets. Here: not for digits and house numbers, whose mirror images mean something else.
    flip: bool = False
    levels: int = 255  # the stored value that means 1.0
    streamed: bool = False  # decoded batch by batch, not into the cache
    embedded: bool = False  # comes with an installed package
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the official contents in official order

    def split(self, name: str) -> str:
        """The canonical name of a split, or an error that lists the known ones."""
        wanted = self.aliases.get(name, name)
        if wanted not in self.splits:
            raise unknown(f"split of {self.name}", name, [*self.splits, *self.aliases])
        return wanted

    @property
    def usual_splits(self) -> list[str]:
        """The splits that people have: without SVHN's `extra` and ImageNet's `train`."""
        return [self.evaluation] if self.streamed else [split for split in self.splits if split != "extra"]

    def split_words(self, split: str) -> tuple[str, ...]:
        """Every name that files and folders use for this split."""
        return (split, *(alias for alias, canonical in self.aliases.items() if canonical == split))


_SPECS = (
    Spec(
        name="digits",
        title="8x8 grey digits, included in scikit-learn",
        shape=(1, 8, 8),
        classes=DIGIT_NAMES,
        splits={"train": 1442, "test": 355},
        embedded=True,
        mean=(0.3057,),
        std=(0.3765,),
        crop=False,
        levels=16,
        fingerprints={
            "train": "8dffbe92999ef5363ca06cb845b875709cc31bf9b9a8721c229e6db0cc6b1c45",
            "test": "7fa57e6d887902b5c4170a329222af92e62e6b8fa81756fe25cb376b0dd1b23d",
        },
    ),
    Spec(
        name="mnist",
        title="28x28 grey handwritten digits",
        shape=(1, 28, 28),
        classes=DIGIT_NAMES,
        splits={"train": 60000, "test": 10000},
        hub="ylecun/mnist",
        revision="77f3279092a1c1579b2250db8eafed0ad422088c",
        hub_config="mnist",
        mean=(0.1307,),
        std=(0.3081,),
        crop=False,
        fingerprints={
            "train": "b985c92f57fad8f1975caa392f80e9c74eacdfe0e62d8f9ebd7ae802198fa8a7",
            "test": "043a20f228bfa3522604f90076f35a567da209c52ede2f6f2c1070b28527c2f0",
        },
    ),
    Spec(
        name="fashion_mnist",
        title="28x28 grey images of clothes",
        shape=(1, 28, 28),
        classes=FASHION_NAMES,
        splits={"train": 60000, "test": 10000},
        hub="zalando-datasets/fashion_mnist",
        revision="531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
        hub_config="fashion_mnist",
        mean=(0.2860,),
        std=(0.3530,),
        crop=False,
        fingerprints={
            "train": "fff75c78a163cd0344ab4c89a58a860aadc9c121a0c243399717736d16c654af",
            "test": "c9392d71ffca82ffb756d902adb0ce719b25b15d883945cc492e904ac0a24c23",
        },
    ),
    Spec(
        name="cifar10",
        title="32x32 colour photographs, 10 classes",
        shape=(3, 32, 32),
        classes=CIFAR10_NAMES,
        splits={"train": 50000, "test": 10000},
        folders=("cifar-10-batches-py",),
        hub="uoft-cs/cifar10",
        revision="0b2714987fa478483af9968de7c934580d0bb9a2",
        hub_config="plain_text",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flip=True,
        fingerprints={
            "train": "0f245f9ae37db853d7e32d3c1c0ab28518740b42dc838bdbc178a4c14c082f12",
            "test": "b877d7dc5468b6f50608dfae314778dbcdca8bd8f24d9e3a6b8b0277ea7c6680",
        },
    ),
    Spec(
        name="cifar100",
        title="32x32 colour photographs, 100 classes",
        shape=(3, 32, 32),
        classes=CIFAR100_NAMES,
        splits={"train": 50000, "test": 10000},
        folders=("cifar-100-python",),
        hub="uoft-cs/cifar100",
        revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
        hub_config="cifar100",
        label_column="fine_label",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        flip=True,
    ),
    Spec(
        name="svhn",
        title="32x32 colour house numbers, cropped digits",
        shape=(3, 32, 32),
        classes=DIGIT_NAMES,
        splits={"train": 73257, "test": 26032, "extra": 531131},
        hub="ufldl-stanford/svhn",
        hub_config="cropped_digits",
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
    ),
    Spec(
        name="imagenet",
        title="ImageNet-1k, resized to 256 and cropped to 224, read on demand",
        shape=(3, 224, 224),
        classes=tuple(str(i) for i in range(1000)),
        splits={"train": 1281167, "validation": 50000},
        evaluation="validation",
        aliases={"test": "validation", "val": "validation"},
        folders=("imagenet-1k", "ILSVRC2012", "ILSVRC"),
        hub="ILSVRC/imagenet-1k",
        revision="49e2ee26f3810fb5a7536bbf732a7b07389a47b5",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        flip=True,
        streamed=True,
    ),
)
CATALOG: dict[str, Spec] = {spec.name: spec for spec in _SPECS}


def squeeze(text: str) -> str:
    """Lower case without separators, so that `CIFAR-10`, `cifar_10` and `cifar10` are the same name."""
    return "".join(c for c in text.lower() if c.isalnum())


def named(name: str) -> Spec | None:
    """The set of this name, however it is spelled."""
    return next((spec for spec in CATALOG.values() if squeeze(spec.name) == squeeze(name)), None)


def owner(text: str) -> Spec | None:
    """The set that the name of a file or folder refers to (`cifar100-test.parquet`): the longest match."""
    word = squeeze(text)
    matches = [
        (len(squeeze(known)), spec)
        for spec in CATALOG.values()
        for known in (spec.name, *spec.folders)
        if not spec.embedded and word.startswith(squeeze(known))
    ]
    return max(matches, key=lambda pair: pair[0])[1] if matches else None


def statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The published mean and standard deviation per channel of a named set, for a model's normalisation."""
    spec = named(name)
    if spec is None:
        raise unknown("data set", name, CATALOG)
    if spec.mean is None or spec.std is None:
        raise InputError(f"no mean and standard deviation are published for {spec.name}: measure them with `check`")
    return spec.mean, spec.std
