"""Named image sets -> tensors in [0, 1]. Knows no model.

`load("digits")` works everywhere. Other sets are read from files that the user has, in the layouts people already
have them in (`available()` names them), found in `data_dir`, or else in the folder that RECARC_DATA names; either may
be the set's own folder or the parent of one named after the set. What is read is decoded once into a memory-mapped
cache (RECARC_CACHE, or ~/.cache/recarc) and needs neither pyarrow nor Pillow afterwards; ImageNet and folders of
large images are decoded batch by batch instead. Nothing goes to the network unless asked: `get(name)` and
`load(name, download=True)` fetch from the Hub with the optional `datasets` library, everything else is local and
fails at once with a line that says what to put where.
"""

from recarc.data.catalog import CATALOG, Spec, statistics
from recarc.data.imageset import ImageSet
from recarc.data.loading import load
from recarc.data.manage import Check, Finding, Row, available, channel_statistics, check, get

__all__ = [
    "CATALOG",
    "Check",
    "Finding",
    "ImageSet",
    "Row",
    "Spec",
    "available",
    "channel_statistics",
    "check",
    "get",
    "load",
    "statistics",
]
