"""Watches power control from outside: whether it and the meters are heard of, and whether loads are within limits.

It shares nothing with what it watches but the tables: plain SQL, a model of the load of its own, no queue, no broker.
It changes no cap and stops nobody; it opens an alarm, and closes it when what was wrong is right again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import Error, connection, transaction

from apps.events.services import record
from apps.power.models import AlarmKind
from apps.power.response import Acts, Meter, Response, TargetKind, Times, limit_it_w

EVERY_S: Final = 5.0
SILENT_AFTER: Final = timedelta(seconds=20)  # four looks of power control
STALE_AFTER: Final = timedelta(minutes=5)
RETIRED_AFTER: Final = timedelta(days=7)  # a meter that has said nothing for so long is not there any more
CALM_FOR: Final = timedelta(seconds=15)  # so long all is right before an alarm closes: no flapping
_MOST_WAIT_MS: Final = 10_000  # for any statement: a watchdog that waits for a lock sees nothing
_OVER_SHARE: Final = 1e-3  # of a limit; so little over it is rounding, and settling of devices
_log = logging.getLogger(__name__)

Key = tuple[str, int | None]  # kind of alarm, and the domain that it is about


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong now. A domain of None: it is about the whole site."""

    kind: str
    domain_id: int | None
    domain: str
    message: str

    @property
    def key(self) -> Key:
        return self.kind, self.domain_id


@dataclass(slots=True)
class Found:
    """What one look came to."""

    raised: list[Finding] = field(default_factory=list)
    cleared: list[Key] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class Watchdog:
    """Looks again and again; remembers nothing but since when all is right, so a new one can go on at any time.

    Args:
        calm_for: How long something must be right before its alarm closes.
    """

    def __init__(self, calm_for: timedelta = CALM_FOR) -> None:
        self._calm_for = calm_for
        self._right_since: dict[Key, datetime] = {}
        self._away_since: datetime | None = None  # the database

    def look(self, at: datetime) -> Found | None:
        """Make every check and open or close alarms. None: the database is away; the next look tries again."""
        try:
            with _short_waits():
                found = self._look(at)
        except Error as error:
            _log.error("The watchdog sees nothing: %s", _first_line(error))
            self._away_since = self._away_since or at
            _let_go()
            return None
        self._away_since = None
        return found

    def _look(self, at: datetime) -> Found:
        found, seen_kinds = Found(), {str(AlarmKind.WATCHDOG_BLIND)}
        blind = []
        for kind, check in CHECKS.items():
            try:
                found.findings += check(at)
                seen_kinds.add(kind)
            except Exception as error:  # whatever it is: the other checks go on, and somebody is told
                if isinstance(error, Error) and not connection.is_usable():
                    raise
                _log.exception("The check for %s failed", kind)
                blind.append(f"{kind}: {type(error).__name__}: {_first_line(error)}")
        if self._away_since is not None and at - self._away_since >= SILENT_AFTER:
            blind.append(f"the database did not answer since {self._away_since:%H:%M:%S} UTC")
        if blind:
            told = f"The watchdog could not see: {'; '.join(blind)}."
            found.findings.append(Finding(AlarmKind.WATCHDOG_BLIND, None, "", told))
        self._note(found, seen_kinds, at)
        return found

    def _note(self, found: Found, seen_kinds: set[str], at: datetime) -> None:
        wrong = {one.key for one in found.findings}
        for one in found.findings:
            self._right_since.pop(one.key, None)
            if _raise_alarm(one, at):
                _log.error("%s: %s", one.kind, one.message)
                found.raised.append(one)
        for alarm_id, kind, domain_id, domain in _open_alarms():
            key = (kind, domain_id)
            # A check that was not made says nothing about what it found before.
            if key in wrong or kind not in seen_kinds:
                continue
            since = self._right_since.setdefault(key, at)
            if at - since >= self._calm_for and _clear_alarm(alarm_id, kind, domain, at):
                _log.warning("%s %s: right again", kind, domain)
                found.cleared.append(key)
                self._right_since.pop(key, None)


@contextmanager
def _short_waits() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, false)", [str(_MOST_WAIT_MS)])
    try:
        yield
    finally:
        with suppress(Error), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', '0', false)")


def _let_go() -> None:
    """Drop the connection: the next statement makes another one. In a test's transaction there is none to make."""
    if not connection.in_atomic_block:
        connection.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200]


def _rows(sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


# Alarms ------------------------------------------------------------------------------------------------------------


def _open_alarms() -> list[tuple[Any, ...]]:
    return _rows(
        "SELECT alarm.id, alarm.kind, alarm.domain_id, COALESCE(domain.name, '')"
        " FROM power_poweralarm alarm LEFT JOIN inventory_domain domain ON domain.id = alarm.domain_id"
        " WHERE alarm.cleared_at IS NULL ORDER BY alarm.id"
    )


@transaction.atomic
def _raise_alarm(one: Finding, at: datetime) -> bool:
    """Whether it is news. Two watchdogs at once raise it once."""
    told = {"kind": one.kind, "domain": one.domain_id, "at": at, "message": one.message[:500]}
    made = _rows(
        "INSERT INTO power_poweralarm (kind, domain_id, raised_at, message)"
        " VALUES (%(kind)s, %(domain)s, %(at)s, %(message)s) ON CONFLICT DO NOTHING RETURNING id",
        told,
    )
    for (alarm_id,) in made:
        _record("power.alarm_raised", alarm_id, one.kind, one.domain, at, reason=one.message[:500])
    return bool(made)


@transaction.atomic
def _clear_alarm(alarm_id: int, kind: str, domain: str, at: datetime) -> bool:
    done = _rows(
        "UPDATE power_poweralarm SET cleared_at = GREATEST(%(at)s, raised_at)"
        " WHERE id = %(id)s AND cleared_at IS NULL RETURNING id",
        {"at": at, "id": alarm_id},
    )
    if done:
        _record("power.alarm_cleared", alarm_id, kind, domain, at)
    return bool(done)


def _record(kind: str, alarm_id: int, alarm: str, domain: str, at: datetime, reason: str = "") -> None:
    record(
        kind,
        subject_kind="power_alarm",
        subject_id=alarm_id,
        subject_name=domain or str(AlarmKind(alarm).label),
        at=at,
        is_audit=True,
        reason=reason,
        source="watchdog",
        data={"alarm": str(alarm)},
    )


# Power control is heard of -----------------------------------------------------------------------------------------

# Something is held down, or is to be: an event from its ramp on until all is given back, or a cap of a running attempt.
_AT_STAKE: Final = """
SELECT controller.heartbeat_at,
    EXISTS (
        SELECT FROM power_demandresponseevent event
        WHERE NOT event.is_test AND event.ramp_start_at <= %(at)s AND event.released_at IS NULL
            AND LEAST(event.cancelled_at, event.opted_out_at) IS NULL AND event.end_at > %(at)s),
    EXISTS (
        SELECT FROM jobs_powercap cap JOIN jobs_allocation allocation ON allocation.id = cap.allocation_id
        WHERE allocation.ended_at IS NULL AND cap.desired_share < cap.back_share),
    EXISTS (
        SELECT FROM power_curtailmentaction action
        JOIN power_curtailmentplan plan ON plan.id = action.plan_id
        JOIN power_demandresponseevent event ON event.id = plan.event_id
        WHERE NOT event.is_test AND action.state <> 'reverted' AND action.issue_at <= %(at)s
            AND plan.committed_at IS NOT NULL)
FROM (SELECT 1) one LEFT JOIN power_powercontroller controller ON controller.id = 1
"""


def silent_controller(at: datetime) -> list[Finding]:
    """Nobody looks after caps that are held, or after an event that is on."""
    heard_at, has_event, has_cap, has_action = _rows(_AT_STAKE, {"at": at})[0]
    if not (has_event or has_cap or has_action) or (heard_at is not None and heard_at >= at - SILENT_AFTER):
        return []
    since = "ever" if heard_at is None else f"since {heard_at:%H:%M:%S} UTC"
    what = "an event is on" if has_event else "jobs are held down"
    told = f"Power control is not heard of {since}, and {what}. Caps stay as they are until their leases are over."
    return [Finding(AlarmKind.CONTROLLER_SILENT, None, "", told)]


# Loads are where they may be ---------------------------------------------------------------------------------------

# What every domain draws by what runs. A cap counts as the ledger has it, and once its lease is over as the agent has
# it then. Own figures: those of the planner and of power control are what is being watched.
_MODELLED: Final = """
WITH RECURSIVE above(base_id, id, parent_id) AS (
    SELECT id, id, parent_id FROM inventory_domain
    UNION ALL
    SELECT above.base_id, domain.id, domain.parent_id
    FROM above JOIN inventory_domain domain ON domain.id = above.parent_id
), busy AS (
    SELECT placement.node_id, sum(claim.share * GREATEST(0, LEAST(
        COALESCE(
            (job.spec->'groups'->placement.group_index->>'power_w')::float8,
            (job.spec->>'power_w')::float8,
            kind.tdp_w),
        kind.tdp_w * CASE WHEN cap.lease_until_at <= %(at)s
            THEN GREATEST(cap.back_share, allocation.desired_power_cap_share)
            ELSE allocation.desired_power_cap_share END
    ) - kind.idle_w)) AS more_w
    FROM jobs_allocation allocation
    JOIN jobs_job job ON job.id = allocation.job_id
    JOIN jobs_placement placement ON placement.allocation_id = allocation.id
    JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id
    JOIN inventory_node node ON node.id = placement.node_id
    JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
    LEFT JOIN jobs_powercap cap ON cap.allocation_id = allocation.id
    WHERE allocation.ended_at IS NULL
    GROUP BY placement.node_id
), drawn AS (
    SELECT node.power_id, node.cooling_id, COALESCE(busy.more_w, 0)
        + CASE WHEN node.health = 'failed' THEN 0 ELSE node.idle_w + node.n_devices * kind.idle_w END AS draw_w
    FROM inventory_node node
    JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
    LEFT JOIN busy ON busy.node_id = node.id
), leaves AS (
    SELECT power_id AS id, sum(draw_w) AS draw_w FROM drawn WHERE power_id IS NOT NULL GROUP BY power_id
    UNION ALL
    SELECT cooling_id, sum(draw_w) FROM drawn WHERE cooling_id IS NOT NULL GROUP BY cooling_id
)
SELECT above.id, sum(leaves.draw_w)::float8 FROM leaves JOIN above ON above.base_id = leaves.id GROUP BY above.id
"""

# The last usable word of each meter. What a model says is no meter; a look-up by index for each domain and source.
_METERED: Final = """
WITH RECURSIVE told(domain_id, source) AS (
    SELECT domain.id, (SELECT min(source) FROM power_powerreading WHERE domain_id = domain.id)
    FROM inventory_domain domain
    UNION ALL
    SELECT told.domain_id, (
        SELECT min(source) FROM power_powerreading WHERE domain_id = told.domain_id AND source > told.source)
    FROM told WHERE told.source IS NOT NULL
)
SELECT DISTINCT ON (told.domain_id) told.domain_id, domain.name, last.at, usable.at, usable.draw_w
FROM told
JOIN inventory_domain domain ON domain.id = told.domain_id
JOIN LATERAL (
    SELECT at FROM power_powerreading
    WHERE domain_id = told.domain_id AND source = told.source ORDER BY at DESC LIMIT 1
) last ON true
LEFT JOIN LATERAL (
    SELECT at, draw_w FROM power_powerreading
    WHERE domain_id = told.domain_id AND source = told.source
        AND quality IN ('ok', 'estimated') AND at > %(retired)s
    ORDER BY at DESC LIMIT 1
) usable ON true
WHERE told.source <> 'modelled' AND last.at > %(retired)s
ORDER BY told.domain_id, usable.at DESC NULLS LAST
"""

# Of an envelope the lowest step that holds, and since when: by the local clock, which only on days on which that is put
# forward or back may be off by the hour.
_LIMITS: Final = """
SELECT domain.id, domain.name, domain.kind, LEAST(limits.hard_limit_w, limits.rated_w * limits.derate),
    limits.limit_w, envelope.limit_w, envelope.since_at,
    COALESCE(limits.overhead_fixed_w, 0), COALESCE(limits.overhead_k, 1)
FROM inventory_domain domain
LEFT JOIN power_powerlimit limits ON limits.domain_id = domain.id
LEFT JOIN LATERAL (
    SELECT step.limit_w, CASE
        WHEN step.weekdays = 0 THEN step.start_at
        ELSE %(at)s - (clock.local - (date_trunc('day', clock.local)
            - CASE WHEN today.minute >= step.from_minute THEN interval '0' ELSE interval '1 day' END
            + make_interval(mins => step.from_minute))) END AS since_at
    FROM power_envelopestep step,
        LATERAL (SELECT %(at)s AT TIME ZONE limits.time_zone AS local) clock,
        LATERAL (SELECT extract(hour FROM clock.local) * 60 + extract(minute FROM clock.local) AS minute,
            extract(isodow FROM clock.local)::int - 1 AS day) today
    WHERE step.limit_id = limits.id AND CASE
        WHEN step.weekdays = 0 THEN step.start_at <= %(at)s AND %(at)s < step.end_at
        WHEN step.from_minute < step.until_minute THEN (step.weekdays >> today.day) & 1 = 1
            AND today.minute >= step.from_minute AND today.minute < step.until_minute
        ELSE ((step.weekdays >> today.day) & 1 = 1 AND today.minute >= step.from_minute)
            OR ((step.weekdays >> ((today.day + 6) %% 7)) & 1 = 1 AND today.minute < step.until_minute) END
    ORDER BY step.limit_w, since_at LIMIT 1
) envelope ON true
WHERE limits.id IS NOT NULL
    OR EXISTS (SELECT FROM power_demandresponseevent event WHERE event.domain_id = domain.id AND event.end_at > %(at)s)
"""

_BINDING: Final = """
SELECT event.id, event.domain_id, event.target_kind, event.value, event.reference_w, event.notified_at,
    event.ramp_start_at, event.start_at, event.end_at, event.cancelled_at, event.opted_out_at
FROM power_demandresponseevent event
WHERE NOT event.is_test AND event.start_at <= %(at)s AND event.end_at > %(at)s
    AND LEAST(event.cancelled_at, event.opted_out_at) IS NULL
    AND EXISTS (
        SELECT FROM power_curtailmentplan plan WHERE plan.event_id = event.id AND plan.committed_at IS NOT NULL)
ORDER BY event.id
"""


@dataclass(frozen=True, slots=True)
class _Metered:
    at: datetime
    draw_w: float


@dataclass(frozen=True, slots=True)
class _Bound:
    """A level that a domain must not pass, in watts of IT load, since when, and what set it."""

    limit_w: float
    since_at: datetime | None
    by: str


def over_limits(at: datetime) -> list[Finding]:
    """Domains, at every level, that draw more than they may: by their meters, or by what runs where there is none."""
    modelled: dict[int, float] = dict(_rows(_MODELLED, {"at": at}))
    metered = {
        domain_id: _Metered(heard_at, draw_w)
        for domain_id, _, _, heard_at, draw_w in _rows(_METERED, {"retired": at - RETIRED_AFTER})
        if heard_at is not None and heard_at >= at - STALE_AFTER
    }
    events: dict[int, list[tuple[Any, ...]]] = {}
    for row in _rows(_BINDING, {"at": at}):
        events.setdefault(row[1], []).append(row)
    found = []
    for domain_id, name, kind, hard_w, limit_w, envelope_w, since_at, fixed_w, k in _rows(
        _LIMITS, {"at": at}
    ):
        meter = Meter(fixed_w, k) if kind == "facility" else Meter()
        told = [
            *([_Bound(meter.it_w(hard_w), None, "its hard limit")] if hard_w is not None else []),
            *([_Bound(meter.it_w(limit_w), None, "its operating limit")] if limit_w is not None else []),
            *([_Bound(meter.it_w(envelope_w), since_at, "its envelope")] if envelope_w is not None else []),
            *_bounds_of(events.get(domain_id, ()), meter),
        ]
        heard = metered.get(domain_id)
        for bound in told:
            draw_w, by = modelled.get(domain_id, 0.0), "by what runs"
            # What a meter said before an event or a step began says nothing about whether its limit is kept.
            if heard is not None and (bound.since_at is None or heard.at >= bound.since_at):
                draw_w, by = meter.it_w(heard.draw_w), "by its meter"
            if draw_w > bound.limit_w * (1 + _OVER_SHARE) + 1.0:
                told_w = f"{draw_w / 1e3:.1f} kW of IT load {by}; {bound.by} is {bound.limit_w / 1e3:.1f} kW"
                found.append(Finding(AlarmKind.OVER_LIMIT, domain_id, name, f"{name} draws {told_w}."))
                break
    return found


def _bounds_of(rows: Iterable[Sequence[Any]], meter: Meter) -> list[_Bound]:
    found = []
    for (
        event_id,
        _,
        target_kind,
        value,
        reference_w,
        notified,
        ramp,
        start,
        end,
        cancelled,
        opted_out,
    ) in rows:
        response = Response(
            times=Times(notified_at=notified, ramp_start_at=ramp, start_at=start, end_at=end),
            acts=Acts(cancelled_at=cancelled, opted_out_at=opted_out),
            target_kind=TargetKind(target_kind),
            value=value,
            reference_w=reference_w,
        )
        limit_w = limit_it_w(response, meter)
        if limit_w is not None:
            found.append(_Bound(limit_w, start, f"the target of event {event_id}"))
    return found


# Meters are heard of -----------------------------------------------------------------------------------------------


def stale_readings(at: datetime) -> list[Finding]:
    """Domains with a meter that says nothing, or nothing that can be used, any more."""
    found = []
    for domain_id, name, last_at, usable_at, _ in _rows(_METERED, {"retired": at - RETIRED_AFTER}):
        if usable_at is not None and usable_at >= at - STALE_AFTER:
            continue
        heard = "nothing usable" if last_at >= at - STALE_AFTER else "nothing"
        since = "" if usable_at is None else f" since {usable_at:%Y-%m-%d %H:%M:%S} UTC"
        told = f"The meter of {name} has said {heard}{since}; what it draws is only modelled."
        found.append(Finding(AlarmKind.STALE_READINGS, domain_id, name, told))
    return found


CHECKS: Final[dict[str, Callable[[datetime], list[Finding]]]] = {
    AlarmKind.CONTROLLER_SILENT: silent_controller,
    AlarmKind.OVER_LIMIT: over_limits,
    AlarmKind.STALE_READINGS: stale_readings,
}
