"""Ground truth for linear ensembles; floors and bounds for any ensemble."""

from recarc.exact.floors import Floor, certified_floor, member_floor
from recarc.exact.linear import Optimum, optimum

__all__ = ["Floor", "Optimum", "certified_floor", "member_floor", "optimum"]
