"""Other people's models, attacks and habits: one module a package, imported only when it is asked for.

Models in, as members from [0, 1] to logits: `member(...)` of `timm`, `torchvision`, `transformers`, `robustbench`,
`efficientnet_lite`, `foolbox` and `art`. Attacks out, in the peer's own style: `ARC`, `Climb` and `Tight` of `foolbox`,
`torchattacks` and `art`. Attacks in, for `WorstOf`: `stage(...)` of `foolbox`, `torchattacks` and `autoattack`.
"""

from importlib import import_module
from typing import Any

PEERS = (
    "art",
    "autoattack",
    "efficientnet_lite",
    "foolbox",
    "robustbench",
    "tensorboard",
    "timm",
    "torchattacks",
    "torchvision",
    "transformers",
)


def __getattr__(name: str) -> Any:
    if name in PEERS:
        return import_module(f"recarc.adapters.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; adapters: {', '.join(PEERS)}")
