"""Ground truth for linear ensembles; floors and bounds for any ensemble."""

from recarc.exact.affine import affine_parameters
from recarc.exact.floors import Floor, certified_floor, member_floor
from recarc.exact.halfspaces import smallest_radius
from recarc.exact.linear import Optimum, optimum

__all__ = ["Floor", "Optimum", "affine_parameters", "certified_floor", "member_floor", "optimum", "smallest_radius"]
