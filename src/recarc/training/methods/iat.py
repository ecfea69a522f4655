"""Independent adversarial training: M members that differ only in their seeds (the paper's Appendix C.5)."""

from __future__ import annotations

from recarc.training.methods.at import AT


class IAT(AT):
    """Member i is what `at` yields with seed + i on the same images; on a GPU the members are trained side by side."""

    summary = "members trained by `at` independently: member i is `at` with seed + i on the same training images"
    default_members = 2
