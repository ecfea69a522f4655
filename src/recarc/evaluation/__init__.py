"""Evaluation: prepare -> attack -> judge -> record, into a folder that survives kills and can be recomputed."""

from recarc.errors import AttackViolation, RecarcWarning, RunError
from recarc.evaluation.engine import evaluate
from recarc.evaluation.progress import Callback, Shard
from recarc.evaluation.result import Estimate, Evaluation
from recarc.evaluation.verdict import Verdict

__all__ = [
    "AttackViolation",
    "Callback",
    "Estimate",
    "Evaluation",
    "RecarcWarning",
    "RunError",
    "Shard",
    "Verdict",
    "evaluate",
]
