"""Evaluation: per-sample truth about an attack, in a folder that survives kills and can be recomputed."""

from recarc.errors import AttackViolation, RunError
from recarc.evaluation.checks import RecarcWarning
from recarc.evaluation.engine import evaluate
from recarc.evaluation.result import Estimate, Evaluation
from recarc.evaluation.verdict import Verdict

__all__ = ["AttackViolation", "Estimate", "Evaluation", "RecarcWarning", "RunError", "Verdict", "evaluate"]
