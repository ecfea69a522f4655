"""`python -m recarc` is the `recarc` command: like that, it imports nothing from the working folder unasked."""

import os
import sys

if __name__ == "__main__":
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # --trust-code puts it back, after what is installed
    from recarc.cli import main

    main()
