"""What can go wrong in a run that is not bad input."""

from __future__ import annotations


class RunError(RuntimeError):
    """The run stopped for a reason outside it (disk full, memory); finished shards are kept."""


class AttackViolation(RuntimeError):
    """An attack returned something it was not allowed to return."""
