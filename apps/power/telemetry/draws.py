"""What a device draws under a job: learned from samples, else as declared, else by its type.

Samples are kept as counts in bins of 10 W, so that they can be added, and asked for any quantile, without being kept
themselves. A quantile is the upper edge of its bin: it is never below what was measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, isfinite
from typing import Final

BIN_W: Final = 10.0
HIGHEST_BIN: Final = 10_000  # 100 kW a device: above that is a slip of the unit
MEAN_AT: Final = 0.5
PEAK_AT: Final = 0.99
# One look at all devices of a job is many samples of one moment: what counts is how many moments were seen.
LEAST_LOOKS: Final = 60
_MOST_SAMPLES: Final = 200_000  # beyond that the past weighs half, again and again


class Source(StrEnum):
    """Where a job's power comes from, from the best to the least."""

    MEASURED = "measured"
    DECLARED = "declared"
    TDP_DERIVED = "tdp_derived"


@dataclass(frozen=True, slots=True)
class Draws:
    """Samples of what one device draws, in watts.

    Attributes:
        counts: By bin, how many; bin n holds what is above (n - 1) x 10 W, up to n x 10 W.
        n_looks: Moments at which they were taken.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    n_looks: int = 0

    @property
    def n_samples(self) -> int:
        return sum(self.counts.values())

    def with_look(self, counts: Mapping[int, int]) -> "Draws":
        """With what was seen at one moment more; of a long past each bin loses half."""
        if not counts:
            return self
        merged = dict(self.counts)
        if self.n_samples > _MOST_SAMPLES:
            # Rounded up, so that what was rare is not forgotten at once: the peak lives there.
            merged = {bin_: -(-n // 2) for bin_, n in merged.items()}
        for bin_, n in counts.items():
            merged[bin_] = merged.get(bin_, 0) + n
        return Draws(merged, self.n_looks + 1)

    def quantile_w(self, share: float) -> float | None:
        """The least of the bins' upper edges at or under which so large a share of the samples lies."""
        n_samples = self.n_samples
        if not n_samples:
            return None
        wanted, seen = ceil(share * n_samples), 0
        for bin_ in sorted(self.counts):
            seen += self.counts[bin_]
            if seen >= wanted:
                return bin_ * BIN_W
        return max(self.counts) * BIN_W

    @property
    def is_enough(self) -> bool:
        return self.n_looks >= LEAST_LOOKS

    @property
    def measured(self) -> tuple[float, float] | None:
        """Mean (the median) and peak (the 99th percentile) of one device; None: too few moments were seen."""
        mean_w, peak_w = self.quantile_w(MEAN_AT), self.quantile_w(PEAK_AT)
        if not self.is_enough or mean_w is None or peak_w is None:
            return None
        return mean_w, peak_w


def bin_of(draw_w: float) -> int | None:
    """The bin of one sample; None: it is no draw of a device."""
    if not isfinite(draw_w) or draw_w < 0:
        return None
    bin_ = ceil(draw_w / BIN_W - 1e-9)
    return bin_ if bin_ <= HIGHEST_BIN else None


def counted(draws_w: Iterable[float]) -> dict[int, int]:
    """Samples of one moment as counts."""
    found: dict[int, int] = {}
    for draw_w in draws_w:
        bin_ = bin_of(draw_w)
        if bin_ is not None:
            found[bin_] = found.get(bin_, 0) + 1
    return found


@dataclass(frozen=True, slots=True)
class JobPower:
    """What one device of a job draws: what forecasts count with, and what is reserved for it."""

    mean_w: float
    peak_w: float
    source: Source


Measured = tuple[float, float]  # mean and peak of one device


def measured_of(*known: Measured | None) -> Measured | None:
    """What is known of the job itself and of its class, together: of two the higher one counts.

    A job that has loaded data so far says less of its peak than the runs of the same name before it.
    """
    told = [one for one in known if one is not None]
    if not told:
        return None
    return max(mean_w for mean_w, _ in told), max(peak_w for _, peak_w in told)


def power_of(
    *, measured: Measured | None, power_w: float | None, peak_w: float | None, tdp_w: float
) -> JobPower:
    """Measured before declared before what the type says; never more than the type can draw.

    Args:
        power_w: As declared: the mean; peak_w: the peak, which is the mean where only that is declared.
    """
    if measured is not None:
        mean_w, measured_peak_w = measured
        return JobPower(min(mean_w, tdp_w), min(max(measured_peak_w, mean_w), tdp_w), Source.MEASURED)
    declared_w = peak_w if peak_w is not None else power_w
    if declared_w is not None:
        mean_w = power_w if power_w is not None else declared_w
        return JobPower(min(mean_w, tdp_w), min(declared_w, tdp_w), Source.DECLARED)
    return JobPower(tdp_w, tdp_w, Source.TDP_DERIVED)


def over_types(each: Sequence[JobPower]) -> JobPower:
    """What to reserve for a job that may land on any of these types: the highest of them, and the worst source."""
    order = list(Source)
    return JobPower(
        mean_w=max(one.mean_w for one in each),
        peak_w=max(one.peak_w for one in each),
        source=max((one.source for one in each), key=order.index),
    )
