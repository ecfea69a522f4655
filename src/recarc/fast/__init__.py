"""Fast copies of ensembles for the search of an attack: folded, fused, in lower precision, compiled or captured.

What an attack finds with a fast copy is judged with the original members in float32.
"""

from recarc.fast.fast_member import FastMember, FastSettings, accelerate

__all__ = ["FastMember", "FastSettings", "accelerate"]
