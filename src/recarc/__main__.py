"""`python -m recarc` is the `recarc` command."""

from recarc.cli import main

if __name__ == "__main__":
    main()
