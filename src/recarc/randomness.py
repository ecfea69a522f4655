"""Random numbers that belong to a sample, not to its place in a batch.

Every sample gets a 64-bit key from its own pixels and the seed; its random numbers are a counter-based
stream of that key (the splitmix64 finaliser, in exact integer arithmetic). The same sample therefore draws the
same numbers in any batch, order, process or device.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: 2^64 / golden ratio, splitmix64's increment
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * MIX_1
    z = (z ^ _shift_right(z, 27)) * MIX_2
    return z ^ _shift_right(z, 31)


def sample_keys(x: Tensor, seed: int) -> Tensor:
    """(B,) int64 keys: a hash of each sample's values (as float32) and the seed."""
    values = x.detach().flatten(1).to(torch.float32) + 0.0  # -0.0 and 0.0 are one value
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    position = torch.arange(bits.shape[1], device=x.device, dtype=torch.int64) * GOLDEN
    seed = (seed + 2**63) % 2**64 - 2**63  # whatever its size, 64 bits of it
    seed_word = _mix(torch.tensor(seed, dtype=torch.int64, device=x.device) * GOLDEN)
    return _mix(_mix(bits ^ _mix(position)).sum(1) + seed_word)


def uniform(keys: Tensor, count: int, stream: int = 0) -> Tensor:
    """(B, count) float64 numbers strictly inside (0, 1): `count` draws of each key's stream."""
    counter = torch.arange(1, count + 1, device=keys.device, dtype=torch.int64) * GOLDEN
    base = _mix(keys + _mix(torch.tensor(stream, dtype=torch.int64, device=keys.device) * MIX_1))
    z = _mix(base[:, None] + counter)
    return (_shift_right(z, 12).to(torch.float64) + 0.5) * 2.0**-52  # 53 bits would round the last one up to 1
