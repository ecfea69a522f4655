"""`python -m recarc.zoo FOLDER NAME TITLE MADE RECIPE`: for maintainers, add a trained ensemble to the zoo."""

from __future__ import annotations

import sys
from pathlib import Path

from recarc.zoo import add

if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    source, name, title, made, recipe = sys.argv[1:]
    print(add(Path(source), name, title, made, recipe))
