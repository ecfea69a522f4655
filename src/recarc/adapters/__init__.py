"""Other packages, in and out; each module is imported only when it is used (`recarc.adapters.foolbox`).

Models in, as members from [0, 1] to logits: `members.timm`, `members.torchvision`, `members.transformers`,
`members.robustbench`, `members.efficientnet_lite`, `foolbox.member` and `art.member`. Attacks out, in the style of the
other package: `wrap(attack, ...)` of `foolbox`, `torchattacks` and `art`. Attacks in, for `WorstOf`: `stage(...)` of
`foolbox`, `torchattacks` and `autoattack`. Trackers of evaluations and of training: `tensorboard.TensorBoard`,
`trackers.WeightsAndBiases` and `trackers.MLflow`.
"""

from recarc.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
