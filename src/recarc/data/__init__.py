"""Named image sets -> tensors in [0, 1]. Knows no model.

`load("digits")` works everywhere. Other sets are read from the user's files, in the formats that people have them in
(`available()` says what to put where), found in `data_dir` or else in the folder named by RECARC_DATA; either may be
the set's own folder or its parent. What is read is decoded once into a memory-mapped cache (RECARC_CACHE, or
~/.cache/recarc) and needs neither pyarrow nor Pillow afterwards; ImageNet and folders of large images are decoded
batch by batch instead. Only `get(name)` and `load(name, download=True)` use the network, with the optional `datasets`
library; everything else is local and fails at once with a line that says what to put where.
"""

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.data.catalog import CATALOG, Spec, statistics
    from recarc.data.formats import Format, register
    from recarc.data.imageset import ImageSet
    from recarc.data.loading import load
    from recarc.data.manage import Check, Finding, Row, available, check, get

__getattr__, __dir__, __all__ = attach(__name__)
