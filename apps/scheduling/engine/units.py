"""Quantities inside the engine are whole millionths, so that sums are exact and an undo gives back what was there."""

import numpy as np

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import FloatArray, IntArray

FULL = SHARE_STEPS  # one whole device
BIG = 2**61  # "no limit"; sums of a few of them still fit


def micro(values: FloatArray | float) -> IntArray:
    """Round to whole millionths; infinite or absurd becomes BIG."""
    array = np.asarray(values, dtype=np.float64)
    scaled = np.where(np.abs(array) < 1e12, array, 0.0) * 1e6
    return np.where(np.abs(array) < 1e12, np.rint(scaled), BIG * np.sign(array)).astype(np.int64)


def micro_of(value: float) -> int:
    """What one replica asks: whole millionths, at least one where it asks for anything at all."""
    if value >= 1e12:
        return BIG
    return max(1, round(value * 1e6)) if value > 0 else 0
