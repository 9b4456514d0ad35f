"""Whose fault an idle device is: the queue, in order, lays claim to what is free."""

from collections.abc import Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from math import ulp
from typing import Final

SPAN: Final = timedelta(minutes=15)  # the ledger's rows

# Every device-second of capacity is in exactly one of these.
BUCKETS: Final = (
    "productive", "starting", "checkpoint", "rework", "staging", "crossing", "straggling", "power", "paused", "held",
    "fragmentation", "quota", "reserved", "drained", "failed", "no_demand",
)  # fmt: skip
# Those of devices that somebody holds.
HELD_BUCKETS: Final = BUCKETS[: BUCKETS.index("power")]

_OF_CODE: Final[Mapping[str, str]] = {
    "quota": "quota",
    "member_limit": "quota",
    "power": "power",
    "reservation": "reserved",
    "priority": "held",
    "resources": "fragmentation",
    "topology": "fragmentation",
    "unhealthy": "fragmentation",
    "spread": "fragmentation",
    "staging": "staging",
}


@dataclass(frozen=True, slots=True)
class Want:
    """A waiting job: its reason, the millionths of devices it asks for, and the types it accepts."""

    code: str
    steps: int
    kinds: tuple[int, ...]
    names_reservation: bool = False


def claim(free: MutableSequence[int], wants: Iterable[Want]) -> Iterator[tuple[int, str, int]]:
    """Let the queue lay claim to free devices: (type, bucket, millionths of devices) of each claim.

    Each job claims as many free devices of one type it accepts as it wants, and its reason names the bucket; one that
    gathers devices of which there are not enough yet holds them for its plan.

    Args:
        free: Millionths of devices by type; what is claimed leaves it.
    """
    left = sum(free)
    for want in wants:
        if left <= 0:
            return
        bucket = _OF_CODE.get(want.code)
        if bucket is None or not want.steps:
            continue
        if want.code == "reservation" and want.names_reservation:
            continue  # its window is not open: nobody keeps devices from it
        able = [kind for kind in want.kinds if free[kind] > 0]
        if not able:
            continue
        kind = max(able, key=lambda k: free[k])
        if bucket == "fragmentation" and want.steps > free[kind]:
            bucket = "held"
        claimed = min(want.steps, free[kind])
        free[kind] -= claimed
        left -= claimed
        yield kind, bucket, claimed


def in_floats(totals: Mapping[str, Fraction], capacity: Fraction) -> dict[str, float]:
    """Exact amounts as floats whose sum is exactly the capacity, in whatever order they are added.

    Every amount is a whole multiple of the last digit that the capacity has as a float, so no sum is rounded.
    """
    whole = float(capacity)
    digit = Fraction(ulp(whole)) if whole else Fraction(1)
    counts = {bucket: round(amount / digit) for bucket, amount in totals.items()}
    if counts:
        largest = max(counts, key=lambda bucket: counts[bucket])
        counts[largest] += round(Fraction(whole) / digit) - sum(counts.values())
    return {bucket: float(count * digit) for bucket, count in counts.items()}
