"""The paper in one place: its tables and figures as recipes, the benchmarks, and everything that was measured.

Not part of the installed package. `python -m paper --list` names the items; README.md beside this file is the map.
"""
