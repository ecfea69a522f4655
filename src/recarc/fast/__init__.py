"""Ensembles that search faster: batch norm folded, channels_last, TF32 or half precision, fused, compiled, captured.

For the search of an attack only: what it finds is judged with the original members in float32.
"""

from recarc.fast.fast_member import TILE, FastMember, Settings, accelerate

__all__ = ["TILE", "FastMember", "Settings", "accelerate"]
