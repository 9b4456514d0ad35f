"""Policies with a name: what each changes about the usual one, so that a page, a file and a replay mean the same."""

from collections.abc import Mapping
from typing import Any, Final

NAMED: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {},
    "strict": {"backfill_depth": 0},
    "easy": {"backfill_depth": 1},
    "conservative": {"backfill_depth": None, "keeps_promises": True},
    # The shortest expected first, so that the mean wait is short; who has waited a day goes before all who did not.
    "shortest": {"order": "shortest", "backfill_depth": 1},
    # The same, and the wider a job the sooner it counts as one that waited too long: all there is, after a fifth of
    # a day. On the logs of docs/benchmarks.md that cuts the longest wait beyond EASY's by a third.
    "turnaround": {"order": "shortest", "backfill_depth": 1, "starving_by_width": 0.8},
}
