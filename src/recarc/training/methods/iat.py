"""Independent adversarial training: M members that differ in their seeds alone (the paper's Appendix C.5)."""

from __future__ import annotations

from recarc.training.methods.at import AT


class IAT(AT):
    """Member i is what `at` gives with seed + i on the same images; on a GPU the members are trained side by side."""

    name = "iat"
    summary = "independent adversarially trained members, one a seed"
    members = 2
