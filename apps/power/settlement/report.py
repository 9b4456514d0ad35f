"""A settlement as it is handed out: everything that was counted, and who answers for it.

Numbers that were computed are text ("20.10"), so that no reader turns a cent into a binary fraction.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from io import StringIO
from typing import Any, Final

from apps.core.strict import MAX_S
from apps.power.settlement.baseline import Baseline
from apps.power.settlement.delivered import Interval
from apps.power.settlement.facts import Event, Number, Terms, Window, exact, rounded
from apps.power.settlement.settle import Statement

_MOST_LOST_S: Final = MAX_S * 10**3  # devices times seconds
# A spreadsheet takes these for the beginning of a formula, the wide ones too.
_FORMULA: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


@dataclass(frozen=True, slots=True)
class Touched:
    """A job that was curtailed, and the device-seconds it lost."""

    job_id: int
    name: str
    lever: str
    lost_device_s: Number

    def __post_init__(self) -> None:
        exact(self.lost_device_s, "lost_device_s", most=_MOST_LOST_S)

    @property
    def lost_device_h(self) -> Decimal:
        return rounded(exact(self.lost_device_s, "lost_device_s", most=_MOST_LOST_S) / 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One event, settled: what was asked, what was agreed, what came of it, and by whose decision.

    Attributes:
        versions: Of whatever the numbers depend on, by name: programme, plan, software.
        committed_by: A person, or the policy that stood in for one.
        plan_hash: Of the plan that was carried out; empty: none was.
    """

    event: Event
    terms: Terms
    baseline: Baseline
    statement: Statement
    committed_by: str
    plan_hash: str
    jobs: tuple[Touched, ...] = ()
    versions: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def lost_device_h(self) -> Decimal:
        lost_s = (exact(job.lost_device_s, "lost_device_s", most=_MOST_LOST_S) for job in self.jobs)
        return rounded(sum(lost_s, Fraction(0)) / 3600)


# As a plain dict ----------------------------------------------------------------------------------------------------


def as_dict(settlement: Settlement) -> dict[str, Any]:
    """For JSON: texts, whole numbers, booleans, null, lists and dicts."""
    event, terms, statement = settlement.event, settlement.terms, settlement.statement
    return {
        "event": {
            "id": event.event_id,
            "version": event.version,
            "priority": event.priority,
            "notified_at": _at(event.notified_at),
            "start_at": _at(event.start_at),
            "end_at": _at(event.end_at),
            "cancelled_at": _at(event.cancelled_at),
            "settled_until": _at(event.bound.end_at) if event.bound else None,
            "target_kind": event.target_kind.value,
            "value_w": str(event.value_w),
        },
        "versions": dict(sorted(settlement.versions.items())),
        "terms": {
            "price_per_kwh": str(terms.price_per_kwh),
            "penalty_per_kwh": str(terms.penalty_per_kwh),
            "currency": terms.currency,
            "tolerance_share": str(terms.tolerance_share),
            "interval_s": str(terms.interval_s),
            "is_unproven_short": terms.is_unproven_short,
            "pays_overlap_once": terms.pays_overlap_once,
        },
        "baseline": _baseline(settlement.baseline),
        "intervals": [_interval(interval) for interval in statement.intervals],
        "overlaps": [
            {"event_id": one.event_id, **_window(one.window), "has_precedence": one.has_precedence}
            for one in statement.overlaps
        ],
        "outcome": statement.outcome.value,
        "performance_factor": _text(statement.performance),
        "target_wh": str(statement.target_wh),
        "delivered_wh": str(statement.delivered_wh),
        "credited_wh": str(statement.credited_wh),
        "shortfall_wh": str(statement.shortfall_wh),
        "unproven_wh": str(statement.unproven_wh),
        "payment": str(statement.payment),
        "penalty": str(statement.penalty),
        "net": str(statement.net),
        "currency": statement.currency,
        "lost_device_h": str(settlement.lost_device_h),
        "jobs": [
            {"id": job.job_id, "name": job.name, "lever": job.lever, "lost_device_h": str(job.lost_device_h)}
            for job in sorted(settlement.jobs, key=lambda job: job.job_id)
        ],
        "committed_by": settlement.committed_by,
        "plan_hash": settlement.plan_hash,
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    made = baseline.adjustment
    return {
        "method": baseline.method.value,
        "days": [day.isoformat() for day in baseline.days],
        "n_days": baseline.n_days,
        "n_wanted": baseline.n_wanted,
        "skipped": [{"day": day.isoformat(), "why": why.value} for day, why in baseline.skipped],
        "raw_w": [str(watts) for watts in baseline.raw_w],
        "adjustment": None
        if made is None
        else {
            **_window(made.window),
            "metered_w": str(made.metered_w),
            "baseline_w": str(made.baseline_w),
            "ratio": str(made.ratio),
            "applied": str(made.applied),
            "cap_share": str(made.cap_share),
            "is_clipped": made.is_clipped,
        },
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        **_window(interval.window),
        "baseline_w": str(interval.baseline_w),
        "metered_w": _text(interval.metered_w),
        "delivered_w": _text(interval.delivered_w),
        "target_w": str(interval.target_w),
        "is_compliant": interval.is_compliant,
        "quality": interval.quality.value,
        "performance": str(interval.performance),
        "target_wh": str(interval.target_wh),
        "delivered_wh": str(interval.delivered_wh),
        "credited_wh": str(interval.credited_wh),
        "shortfall_wh": str(interval.shortfall_wh),
        "overlaps": list(interval.overlaps),
    }


def _window(window: Window) -> dict[str, str]:
    return {"start_at": window.start_at.isoformat(), "end_at": window.end_at.isoformat()}


def _at(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _text(value: Decimal | None) -> str | None:
    return None if value is None else str(value)


# As CSV -------------------------------------------------------------------------------------------------------------

_TABLES: Final = ("intervals", "overlaps", "jobs")
_INTERVAL: Final = (
    "start_at",
    "end_at",
    "baseline_w",
    "metered_w",
    "delivered_w",
    "target_w",
    "is_compliant",
    "quality",
    "performance",
    "target_wh",
    "delivered_wh",
    "credited_wh",
    "shortfall_wh",
    "overlaps",
)
_HEADS: Final[Mapping[str, tuple[str, ...]]] = {
    "intervals": _INTERVAL,
    "overlaps": ("event_id", "start_at", "end_at", "has_precedence"),
    "jobs": ("id", "name", "lever", "lost_device_h"),
}


def as_csv(settlement: Settlement) -> str:
    """All of `as_dict`: first a field a line, then the tables, each after an empty line and a line with its name."""
    return csv_of(as_dict(settlement))


def csv_of(told: Mapping[str, Any]) -> str:
    """A document of `as_dict`, as it is or with more in it, as `as_csv` writes it."""
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(("field", "value"))
    for path, value in _flat({key: value for key, value in told.items() if key not in _TABLES}):
        writer.writerow((_harmless(path), _cell(value)))
    for table in _TABLES:
        writer.writerow(())
        writer.writerow((table,))
        writer.writerow(_HEADS[table])
        for row in told[table]:
            writer.writerow([_cell(row[name]) for name in _HEADS[table]])
    return out.getvalue()


def _flat(told: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in told.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return _harmless(_joined(value))
    return _harmless(str(value))


def _joined(values: Iterable[Any]) -> str:
    return "; ".join(
        " ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value) for value in values
    )


def _harmless(text: str) -> str:
    """Quote what a spreadsheet would take for a formula; a plain number stays one, negative or not."""
    first = text.lstrip()[:1]
    if text[:1] in ("\t", "\r", "\n") or (first in _FORMULA and first and not _is_number(text)):
        return f"'{text}"
    return text


def _is_number(text: str) -> bool:
    """As we write them: digits, with a sign and a point at most."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return digits.isascii() and digits.isdecimal()
