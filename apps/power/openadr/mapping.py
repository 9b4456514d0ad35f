"""From the events of a VTN to signals in watts: what is asked, of whom, from when to when.

Pure. An event is taken whole or refused whole, each fault named by its JSON path, and a bad one hides no other.
Sources: the event payloads of OpenADR 3.0.1 and 3.1.0 (Definitions, event-interval-payloads).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from apps.core.strict import Misfit, faults_of, path_of
from apps.power.openadr.signals import (
    Fault,
    Interval,
    Quote,
    Reading,
    ReportRequest,
    Rules,
    Signal,
    TargetKind,
    Units,
)
from apps.power.openadr.timeline import Timeline, lay_out
from apps.power.openadr.times import read_instant
from apps.power.openadr.wire import (
    Event,
    ObjectId,
    PayloadDescriptor,
    Program,
    ReportDescriptor,
    Values,
    read_at,
    told,
)

MAX_EVENTS: Final = 10_000
_SKEW: Final = timedelta(minutes=5)  # clocks differ
_W_PER: Final = {"W": 1.0, "KW": 1e3, "MW": 1e6}


def units_of_programs(programs: Iterable[object]) -> dict[str, dict[str, Units]]:
    """By programme and payload type, the units that its events have unless they say otherwise."""
    found: dict[str, dict[str, Units]] = {}
    for raw in programs:
        try:
            program = Program.model_validate(raw)
        except ValidationError:
            continue  # its events still say, or fall back to the rules
        for described in program.payloadDescriptors or ():
            try:
                one = PayloadDescriptor.model_validate(described)
            except ValidationError:
                continue
            found.setdefault(program.id, {})[one.payloadType] = Units(one.units or "", one.currency or "")
    return found


def read_events(
    events: Sequence[object],
    *,
    now: datetime,
    program_ids: Iterable[str] = (),
    rules: Mapping[str, Rules] | None = None,
    units: Mapping[str, Mapping[str, Units]] | None = None,
    known: Mapping[str, Signal] | None = None,
    versions: Mapping[str, datetime] | None = None,
) -> Reading:
    """Read a complete listing.

    Args:
        program_ids: The programmes it was asked for; events of others are refused. Empty: any.
        rules: By programme; Rules() where there are none.
        units: By programme and payload type, as `units_of_programs` gives them.
        known: By external id, what was taken before: keeps the start of events that started "now", and tells replays.
        versions: By external id, the newest version ever seen, of cancelled ones too.
    """
    known, asked = known or {}, frozenset(program_ids)
    signals: list[Signal] = []
    refused: list[Fault] = []
    notices: list[Fault] = []
    refused_ids: set[str] = set()
    has_nameless, seen = False, set[str]()
    for index, raw in enumerate(events[:MAX_EVENTS]):
        name = _id_of(raw)
        try:
            if name in seen:
                raise Misfit("is listed twice", "id")
            seen.add(name)
            before = known.get(name)
            newest = _newest(before, (versions or {}).get(name))
            signal, passed_over = _read(raw, asked, rules or {}, units or {}, now, before, newest)
        except ValidationError as error:
            faults = [
                (fault["path"], fault["message"]) for fault in faults_of(error, prefix=["events", index])
            ]
        except Misfit as misfit:
            faults = [(path_of(["events", index, *misfit.field]), str(misfit))]
        else:
            signals.append(signal)
            notices += [Fault(name, path_of(["events", index, *path]), said) for path, said in passed_over]
            continue
        refused += [Fault(name, path, said) for path, said in faults]
        refused_ids.add(name)
        has_nameless = has_nameless or not name
    if len(events) > MAX_EVENTS:
        refused.append(Fault("", path_of(["events", MAX_EVENTS]), f"is one of more than {MAX_EVENTS} events"))
        has_nameless = True
    taken = tuple(signal for signal in signals if signal.external_id not in refused_ids)
    return Reading(
        at=now,
        program_ids=asked,
        signals=taken,
        refused=tuple(refused),
        notices=tuple(notices),
        refused_ids=frozenset(refused_ids - {""}),
        has_nameless=has_nameless,
    )


# What was passed over in an event that was taken: where in it, and why.
_Passed = list[tuple[tuple[str | int, ...], str]]
_NAME: Final = TypeAdapter(ObjectId, config=ConfigDict(strict=True))


def _id_of(raw: object) -> str:
    """The id of an event that may be bad otherwise; empty where it has none that is usable."""
    try:
        return _NAME.validate_python(raw.get("id") if isinstance(raw, dict) else None)
    except ValidationError:
        return ""


def _read(
    raw: object,
    asked: frozenset[str],
    rules: Mapping[str, Rules],
    units: Mapping[str, Mapping[str, Units]],
    now: datetime,
    before: Signal | None,
    newest: datetime | None,
) -> tuple[Signal, _Passed]:
    """One event. Raises ValidationError or Misfit, whose paths begin at the event."""
    event = Event.model_validate(raw)
    if asked and event.programID not in asked:
        raise Misfit("is a programme that was not asked for", "programID")
    rule = rules.get(event.programID, Rules())
    modified_at, fingerprint = _version(event, now, newest), _fingerprint(raw)
    # An event that starts now starts once: not again at every poll.
    is_same = before is not None and before.starts_now and before.fingerprint == fingerprint
    timeline = lay_out(event, now, before.start if before is not None and is_same else now, rule)
    passed: _Passed = []
    reports = _reports(event, passed)
    if timeline.is_void:
        passed.append((("intervalPeriod",), "is empty: the event asks for nothing, or no longer"))
        asks = _Asks()
    else:
        asks = _asks(event, rule, units.get(event.programID, {}))
    intervals = tuple(
        replace(asks.by_index[index], start=start, end=end) for index, start, end in timeline.stretches
    )
    values = [each.value for each in intervals if each.value is not None]
    is_limit = asks.kind is TargetKind.LIMIT_TO
    signal = Signal(
        external_id=event.id,
        modified_at=modified_at,
        program_id=event.programID,
        name=told(event.eventName or ""),
        priority=event.priority,
        targets=_targets(event, passed),
        start=timeline.start,
        end=timeline.end,
        starts_now=timeline.starts_now,
        period_s=timeline.period_s,
        randomize_s=timeline.randomize_s,
        target_kind=asks.kind,
        value=(min if is_limit else max)(values) if values else None,
        intervals=intervals,
        n_before=timeline.n_before,
        is_emergency=any(each.is_emergency for each in intervals),
        advisory=next((each.advisory for each in intervals if each.advisory), ""),
        needs_person=(is_limit and any(value < rule.floor_w for value in values))
        or (asks.kind is TargetKind.SHED_BY and any(value > rule.largest_shed_w for value in values)),
        is_test=rule.is_test or bool(rule.test_marker and rule.test_marker in (event.eventName or "")),
        is_void=timeline.is_void,
        quotes=_quotes(asks, timeline),
        reports=reports,
        ignored=tuple(sorted(asks.ignored)),
        fingerprint=fingerprint,
    )
    _require_not_backdated(signal, timeline, before, now, rule)
    return signal, passed


def _newest(before: Signal | None, seen_at: datetime | None) -> datetime | None:
    """The newest version of an event that was seen until now."""
    known_at = before.modified_at if before is not None else None
    if known_at is None or seen_at is None:
        return known_at or seen_at
    return max(known_at, seen_at)


def _version(event: Event, now: datetime, newest: datetime | None) -> datetime:
    name = "modificationDateTime" if event.modificationDateTime else "createdDateTime"
    text = event.modificationDateTime or event.createdDateTime
    if not text:
        raise Misfit("is required", "modificationDateTime", code="missing")
    at = read_at(read_instant, text, name)
    if at > now + _SKEW:
        # Taken, it would make every later version look like a replay.
        raise Misfit("lies in the future", name)
    if newest is not None and at < newest:
        raise Misfit(f"is older than the version of {newest.isoformat()} that was seen before", name)
    return at


def _fingerprint(raw: object) -> str:
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _require_not_backdated(
    signal: Signal, timeline: Timeline, before: Signal | None, now: datetime, rule: Rules
) -> None:
    """Refuse what claims to have been asked for long before it was first heard of.

    A 3.0.1 VTN lists events that are over, too; those are no claim.
    """
    is_asking = signal.target_kind is not None or signal.is_emergency
    if not is_asking or signal.starts_now or signal.is_over(now):
        return
    is_known = before is not None and before.start <= signal.start
    if not is_known and signal.start < now - timedelta(seconds=rule.max_backdate_s):
        raise Misfit(f"lies more than {rule.max_backdate_s:.0f} s in the past", *timeline.start_path)


@dataclass(slots=True)
class _Asks:
    """What an event's intervals ask for, by position; their times are not filled in."""

    kind: TargetKind | None = None
    by_index: list[Interval] = field(default_factory=list)
    quotes: list[list[tuple[str, tuple[float, ...], Units]]] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)


_KINDS: Final = {
    "IMPORT_CAPACITY_LIMIT": TargetKind.LIMIT_TO,
    "DISPATCH_SETPOINT": TargetKind.LIMIT_TO,
    "DISPATCH_SETPOINT_RELATIVE": TargetKind.SHED_BY,
    "SIMPLE": TargetKind.LEVEL,
    "CONTROL_LEVEL_OFFSET": TargetKind.LEVEL,
}
_QUOTED: Final = ("PRICE", "GHG")
_UNTIMED: Final = datetime(1971, 1, 1, tzinfo=UTC)


def _asks(event: Event, rule: Rules, of_program: Mapping[str, Units]) -> _Asks:
    asks = _Asks()
    described = {each.payloadType: each for each in event.payloadDescriptors or ()}

    def units_of(payload_type: str) -> Units:
        said, usual = described.get(payload_type), of_program.get(payload_type, Units())
        units = (said and said.units) or usual.units
        return Units(units, (said and said.currency) or usual.currency)

    for index, interval in enumerate(event.intervals or ()):
        ask, quotes = Interval(interval.id, _UNTIMED, None), []
        for position, payload in enumerate(interval.payloads):
            path = ("intervals", index, "payloads", position)
            kind, units = _KINDS.get(payload.type), units_of(payload.type)
            if kind is not None:
                if asks.kind not in (None, kind):
                    raise Misfit(
                        f"asks for {kind} where another asks for {asks.kind}: one kind a signal",
                        *path,
                        "type",
                    )
                asks.kind = kind
                ask = _stricter(ask, kind, _value(payload, kind, units.units, rule, path), rule)
            elif payload.type == "IMPORT_CAPACITY_SUBSCRIPTION":
                watts = _watts(_one_number(payload, path), units.units, rule, path)
                ask = replace(
                    ask,
                    subscription_w=min(watts, math.inf if ask.subscription_w is None else ask.subscription_w),
                )
            elif payload.type in _QUOTED:
                quotes.append((payload.type, _many_numbers(payload, path), units))
            elif payload.type == "ALERT_GRID_EMERGENCY":
                # Whatever its text: an emergency is not refused for a typing error.
                ask = replace(ask, is_emergency=True, advisory=ask.advisory or _text_of(payload))
            elif payload.type == "ALERT_FLEX_ALERT":
                ask = replace(ask, advisory=ask.advisory or _text_of(payload) or "Flex alert")
            else:
                asks.ignored.add(told(payload.type))
        asks.by_index.append(ask)
        asks.quotes.append(quotes)
    return asks


def _stricter(ask: Interval, kind: TargetKind, value: float, rule: Rules) -> Interval:
    if ask.value is not None:
        value = min(value, ask.value) if kind is TargetKind.LIMIT_TO else max(value, ask.value)
    share = rule.level_shares[int(value)] if kind is TargetKind.LEVEL else None
    return replace(ask, value=value, shed_share=share)


def _value(payload: Values, kind: TargetKind, units: str, rule: Rules, path: tuple[str | int, ...]) -> float:
    number = _one_number(payload, path)
    if payload.type == "DISPATCH_SETPOINT_RELATIVE" and rule.relative_sign < 0:
        if number > 0:
            raise Misfit("asks for more load (in this programme a reduction is negative)", *path, "values", 0)
        return _watts(-number + 0.0, units, rule, path)
    if kind is not TargetKind.LEVEL:
        return _watts(number, units, rule, path)
    if number != int(number):
        raise Misfit("must be a whole level", *path, "values", 0)
    if number < 0:
        raise Misfit("asks for more load than usual, which is not offered", *path, "values", 0)
    top = min(3, len(rule.level_shares) - 1) if payload.type == "SIMPLE" else len(rule.level_shares) - 1
    if number > top:
        raise Misfit(f"is a level beyond the programme's table, which ends at {top}", *path, "values", 0)
    return float(number)


def _watts(number: float, units: str, rule: Rules, path: tuple[str | int, ...]) -> float:
    units = units or rule.default_units
    factor = _W_PER.get(units.upper())
    if factor is None:
        said = (
            f"are {told(units)}, not W, KW or MW" if units else "have no units, and the programme sets none"
        )
        raise Misfit(said, *path, "values")
    if number < 0:
        raise Misfit("must not be negative", *path, "values", 0)
    if number > rule.largest_w / factor:
        raise Misfit(f"is more than {rule.largest_w:.0f} W", *path, "values", 0)
    return float(number) * factor


def _one_number(payload: Values, path: tuple[str | int, ...]) -> float:
    if len(payload.values) != 1:
        raise Misfit("must hold one number", *path, "values")
    return _number(payload.values[0], *path, "values", 0)


def _many_numbers(payload: Values, path: tuple[str | int, ...]) -> tuple[float, ...]:
    """Prices may be packed: several values share the interval's time evenly."""
    if not payload.values:
        raise Misfit("must not be empty", *path, "values")
    return tuple(_number(value, *path, "values", at) for at, value in enumerate(payload.values))


def _number(value: object, *path: str | int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit("must be a number", *path, code="wrong_type")
    if isinstance(value, float) and not math.isfinite(value):
        raise Misfit("must be a finite number", *path, code="not_finite")
    if abs(value) > 1e15:
        raise Misfit("must be a number of usual size", *path, code="out_of_range")
    return value


def _quotes(asks: _Asks, timeline: Timeline) -> tuple[Quote, ...]:
    found: list[Quote] = []
    for index, start, end in timeline.stretches:
        for payload_type, values, units in asks.quotes[index]:
            if len(values) > 1 and end is None:
                raise Misfit("cannot be spread over an interval without an end", "intervals", index)
            step = (end - start) / len(values) if end is not None else None
            for at, value in enumerate(values):
                begun = start + step * at if step is not None else start
                over = end if step is None or at == len(values) - 1 else begun + step
                found.append(Quote(payload_type, begun, over, float(value), units.units, units.currency))
    return tuple(found)


def _text_of(payload: Values) -> str:
    return told(" ".join(value for value in payload.values if isinstance(value, str)))


def _targets(event: Event, passed: _Passed) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for index, raw in enumerate(event.targets or ()):
        if isinstance(raw, str):  # 3.1.0
            found.append(("", told(raw)))
            continue
        try:
            one = Values.model_validate(raw)
        except ValidationError:
            # Who is meant cannot be half understood.
            raise Misfit("must be a name, or a type and its values", "targets", index) from None
        found += [(told(one.type), told(value)) for value in one.values if isinstance(value, str)]
        if not all(isinstance(value, str) for value in one.values):
            passed.append((("targets", index, "values"), "holds values that are no names"))
    return tuple(found)


def _reports(event: Event, passed: _Passed) -> tuple[ReportRequest, ...]:
    """The reports asked for. A faulty request is passed over: it must not keep a limit from being seen."""
    found: list[ReportRequest] = []
    for index, raw in enumerate(event.reportDescriptors or ()):
        try:
            one = ReportDescriptor.model_validate(raw)
        except ValidationError as error:
            faults = faults_of(error, prefix=["reportDescriptors", index])
            passed += [((fault["path"],), fault["message"]) for fault in faults]
            continue
        usual = ReportRequest(told(one.payloadType))
        found.append(
            ReportRequest(
                payload_type=usual.payload_type,
                units=told(one.units or ""),
                reading_type=told(one.readingType or ""),
                is_aggregate=bool(one.aggregate),
                start_interval=usual.start_interval if one.startInterval is None else one.startInterval,
                n_intervals=usual.n_intervals if one.numIntervals is None else one.numIntervals,
                is_historical=one.historical is not False,
                frequency=usual.frequency if one.frequency is None else one.frequency,
                repeat=usual.repeat if one.repeat is None else one.repeat,
                is_open=one.reportIntervals == "OPEN_INTERVALS",
            )
        )
    return tuple(found)
