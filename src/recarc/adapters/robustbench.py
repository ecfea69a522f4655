"""Members by their RobustBench names; RobustBench itself downloads the weights and holds the normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recarc.adapters.members import AdaptedMember, adapted, peer
from recarc.errors import InputError, unknown


def member(
    name: str, dataset: str = "cifar10", threat_model: str = "Linf", model_dir: str | Path = "models"
) -> AdaptedMember:
    """`robustbench.utils.load_model(...)` as a member: RobustBench models take [0, 1] and normalise inside."""
    utils = peer("robustbench.utils", "robustbench")
    known = _names(dataset, threat_model)
    if name not in known:
        raise unknown(f"RobustBench model ({dataset}, {threat_model})", name, known)
    net = utils.load_model(name, model_dir=str(model_dir), dataset=dataset, threat_model=threat_model)
    return adapted(net, 0.0, 1.0, None, f"RobustBench {name}")


def members(
    names: Sequence[str], dataset: str = "cifar10", threat_model: str = "Linf", model_dir: str | Path = "models"
) -> list[AdaptedMember]:
    """Several of them, for `RandomizedEnsemble(members([...]), alpha)`."""
    return [member(name, dataset, threat_model, model_dir) for name in names]


def _names(dataset: str, threat_model: str) -> list[str]:
    zoo = peer("robustbench.model_zoo", "robustbench")
    enums = peer("robustbench.model_zoo.enums", "robustbench")
    try:
        return list(zoo.model_dicts[enums.BenchmarkDataset(dataset)][enums.ThreatModel(threat_model)])
    except (ValueError, KeyError):
        sets = ", ".join(item.value for item in enums.BenchmarkDataset)
        threats = ", ".join(item.value for item in enums.ThreatModel)
        raise InputError(
            f"RobustBench has no models for {dataset!r} and {threat_model!r}; data sets: {sets}; threats: {threats}"
        ) from None
