"""Ground truth for linear ensembles."""

from recarc.exact.affine import affine_parameters
from recarc.exact.halfspaces import smallest_radius
from recarc.exact.linear import Optimum, optimum

__all__ = ["Optimum", "affine_parameters", "optimum", "smallest_radius"]
