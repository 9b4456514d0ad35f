"""One function a chart: plain dicts for plotly.js, drawn in the browser. Colours are CSS variables.

The dicts are checked against plotly's schema in tests; at run time `graph_objects` would be ten times slower.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

Figure = dict[str, Any]

_SHORTEST: Final = timedelta(minutes=30)
_COLOURS: Final = ("blue", "orange", "green", "purple", "gold", "verm")
_SMALL: Final = {"small": {"xaxis": {"nticks": 4}, "yaxis": {"nticks": 4}, "margin": {"l": 36, "r": 8}}}


def _var(colour: str) -> str:
    return f"var(--sy-c-{colour})"


def _fill(colour: str) -> str:
    return f"var(--sy-f-{colour})" if colour in ("blue", "orange") else f"var(--sy-t-{colour})"


def _local(at: datetime) -> str:
    """plotly.js knows no zones: it is given the site's wall clock."""
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def _now_line(now: datetime) -> Figure:
    return {
        "type": "line",
        "x0": _local(now),
        "x1": _local(now),
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": "var(--sy-text)", "width": 1, "dash": "dot"},
    }


def _window(since: datetime, now: datetime, points: Iterable[tuple[datetime, float]]) -> list[str]:
    """From the first point on, where the record is shorter than the period; half an hour at least."""
    first = min((at for at, _ in points), default=since)
    begin = max(since, min(first, now - _SHORTEST))
    return [_local(begin), _local(now + (now - begin) / 100)]


def power_chart(
    draw: Mapping[str, Sequence[tuple[datetime, float]]],
    limit_w: float | None,
    *,
    since: datetime,
    now: datetime,
) -> Figure:
    """Power against the envelope: stacked draw by hall in MW (kW for a small facility), and the limit.

    Args:
        draw: By name of a hall, or of the whole facility, instants and watts in order of time.
    """
    window = _window(since, now, (point for points in draw.values() for point in points))
    peak_w = max([limit_w or 0.0, *(watts for points in draw.values() for _, watts in points)], default=0.0)
    unit, divisor = ("MW", 1e6) if peak_w >= 1e6 else ("kW", 1e3)
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "stackgroup": "draw",
            "stackgaps": "interpolate",
            "x": [_local(at) for at, _ in points],
            "y": [round(watts / divisor, 4) for _, watts in points],
            "line": {"color": _var(colour), "width": 1.6},
            "fillcolor": _fill(colour),
            "hovertemplate": f"%{{y:.2f}} {unit}",
        }
        for colour, (name, points) in zip(_COLOURS, list(draw.items())[: len(_COLOURS)], strict=False)
    ]
    if limit_w is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Limit",
                "x": [window[0], _local(now)],
                "y": [round(limit_w / divisor, 4)] * 2,
                "line": {"color": _var("verm"), "width": 2, "dash": "dash"},
                "hovertemplate": f"%{{y:.2f}} {unit}",
            }
        )
    layout: Figure = {
        "xaxis": {
            "type": "date",
            "tickformat": "%H:%M\n%a %-d %b",
            "range": window,
        },
        "yaxis": {"rangemode": "tozero", "title": {"text": unit}, "nticks": 6},
        "shapes": [_now_line(now)],
        "meta": _SMALL,
    }
    return {"data": traces, "layout": layout}


def utilization_chart(
    held: Mapping[str, Sequence[tuple[datetime, float]]],
    capacity: Sequence[tuple[datetime, float]],
    *,
    since: datetime,
    now: datetime,
) -> Figure:
    """Devices in use over time, stacked by accelerator type, under all there are."""
    window = _window(since, now, capacity)
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "stackgroup": "held",
            "stackgaps": "interpolate",
            "x": [_local(at) for at, _ in points],
            "y": [round(devices, 3) for _, devices in points],
            "line": {"color": _var(colour), "width": 1.2, "shape": "hv"},
            "fillcolor": f"var(--sy-t-{colour})",
            "hovertemplate": "%{y:,.6~g}",
        }
        for colour, (name, points) in zip(_COLOURS, list(held.items())[: len(_COLOURS)], strict=False)
    ]
    if capacity:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "All there are",
                "x": [_local(at) for at, _ in capacity],
                "y": [devices for _, devices in capacity],
                "line": {"color": _var("slate"), "width": 1.6, "dash": "dash", "shape": "hv"},
                "hovertemplate": "%{y:,.6~g}",
            }
        )
    layout: Figure = {
        "xaxis": {
            "type": "date",
            "tickformat": "%H:%M\n%a %-d %b",
            "range": window,
        },
        "yaxis": {"rangemode": "tozero", "nticks": 6},
        "meta": _SMALL,
    }
    return {"data": traces, "layout": layout}


def hours_chart(
    series: Mapping[str, tuple[str, Sequence[tuple[datetime, float]]]],
    *,
    since: datetime,
    until: datetime,
    step: timedelta,
) -> Figure:
    """Where the device hours went: devices by group, stacked; each point is the mean of the step that begins there.

    Args:
        series: By label, a colour and instants with a number of devices, the lowest group first.
    """
    window = _window(since, until, (point for _, points in series.values() for point in points))
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "stackgroup": "hours",
            "stackgaps": "interpolate",
            "x": [_local(at) for at, _ in points] + [_local(min(at + step, until)) for at, _ in points[-1:]],
            "y": [round(devices, 2) for _, devices in points]
            + [round(devices, 2) for _, devices in points[-1:]],
            "line": {"color": _var(colour), "width": 1, "shape": "hv"},
            "fillcolor": f"var(--sy-t-{colour})",
            "hovertemplate": "%{y:,.4~g}",
        }
        for label, (colour, points) in series.items()
    ]
    layout: Figure = {
        "xaxis": {"type": "date", "tickformat": "%H:%M\n%a %-d %b", "range": window},
        "yaxis": {"rangemode": "tozero", "nticks": 6, "title": {"text": "devices"}},
        "meta": {"small": {**_SMALL["small"], "showlegend": False}},  # the table below has the colours
    }
    return {"data": traces, "layout": layout}


def waits_chart(labels: Sequence[str], by_size: Mapping[str, Sequence[int]]) -> Figure:
    """How long jobs waited: jobs by class of wait, stacked by class of size."""
    traces: list[Figure] = [
        {
            "type": "bar",
            "name": size,
            "x": list(labels),
            "y": list(counts),
            "marker": {"color": _var(colour)},
            "hovertemplate": "%{y:,}",
        }
        for colour, (size, counts) in zip(_COLOURS, by_size.items(), strict=False)
        if any(counts)
    ]
    layout: Figure = {
        "barmode": "stack",
        "xaxis": {"type": "category", "categoryorder": "array", "categoryarray": list(labels)},
        "yaxis": {"rangemode": "tozero", "nticks": 6, "title": {"text": "jobs"}},
        "meta": {"small": {"margin": {"l": 36, "r": 8}}},
    }
    return {"data": traces, "layout": layout}


@dataclass(frozen=True)
class Promise:
    """One bar of the reservations: its lane, when, and what share of the lane it takes."""

    lane: str
    label: str
    start_at: datetime
    end_at: datetime
    share: float
    is_maintenance: bool


_LEAST_SHARE: Final = 0.08  # a bar that is thinner cannot be seen
_MOST_BARS: Final = 500


def promises_chart(
    bars: Sequence[Promise], lanes: Sequence[str], *, since: datetime, until: datetime, now: datetime
) -> Figure:
    """C6: reservations by accelerator type, from start to end; a bar is as high as its share of the type."""
    shown = sorted(bars, key=lambda bar: (bar.start_at, bar.lane, -bar.share))[:_MOST_BARS]
    at_lane = {lane: len(lanes) - 1 - number for number, lane in enumerate(lanes)}
    placed: list[tuple[Promise, float, float]] = []  # with its lower edge and height, in lanes
    for bar in shown:
        height = max(_LEAST_SHARE, bar.share) * 0.9
        beside = [
            (low, low + tall)
            for other, low, tall in placed
            if other.lane == bar.lane and other.end_at > bar.start_at and other.start_at < bar.end_at
        ]
        low = 0.05
        for begin, end in sorted(beside):
            if low + height <= begin:
                break
            low = max(low, end)
        placed.append((bar, min(low, max(0.05, 0.95 - height)), height))
    traces: list[Figure] = []
    for is_maintenance, name, colour in ((False, "Reserved", "blue"), (True, "Maintenance", "slate")):
        mine = [one for one in placed if one[0].is_maintenance == is_maintenance]
        if not mine:
            continue
        marker: Figure = {
            "color": f"var(--sy-t-{colour})",
            "line": {"color": _var(colour), "width": 1},
        }
        if is_maintenance:
            marker["pattern"] = {"shape": "/", "fillmode": "overlay", "fgcolor": _var(colour), "size": 6}
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "base": [_local(bar.start_at) for bar, _, _ in mine],
                "x": [(bar.end_at - bar.start_at).total_seconds() * 1000 for bar, _, _ in mine],
                "y": [at_lane[bar.lane] + low + height / 2 for bar, low, height in mine],
                "width": [height for _, _, height in mine],
                "text": [plain_text(bar.label) for bar, _, _ in mine],
                "textposition": "inside",
                "insidetextanchor": "start",
                "constraintext": "none",
                "marker": marker,
                "hovertemplate": "%{text}",
            }
        )
    layout: Figure = {
        "barmode": "overlay",
        "hovermode": "closest",
        "xaxis": {
            "type": "date",
            "side": "top",
            "tickformat": "%a %-d %b",
            "range": [_local(since), _local(until)],
        },
        "yaxis": {
            "range": [0, max(1, len(lanes))],
            "tickvals": [at_lane[lane] + 0.5 for lane in lanes],
            "ticktext": [plain_text(lane) for lane in lanes],
            "showgrid": False,
        },
        "shapes": [
            _now_line(now),
            *(
                {
                    "type": "line",
                    "x0": 0,
                    "x1": 1,
                    "xref": "paper",
                    "y0": n,
                    "y1": n,
                    "line": {"color": "var(--sy-grid)", "width": 1},
                }
                for n in range(1, len(lanes))
            ),
        ],
        "meta": {"small": {"xaxis": {"nticks": 4}, "margin": {"l": 36, "r": 8}}},
    }
    return {"data": traces, "layout": layout}


def plain_text(text: str) -> str:
    """Text of people for a chart, whose renderer takes a few tags: it is given none."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def settlement_chart(
    rows: Sequence[tuple[datetime, datetime, float, float, float | None, bool]],
) -> Figure:
    """A settled event: baseline, what it left to draw, and what was metered, in kW by interval; gaps are gaps.

    Args:
        rows: Start and end, then watts: baseline, limit, metered; and whether good readings prove it.
    """
    starts = [_local(begin_at) for begin_at, *_ in rows]
    ends = [_local(rows[-1][1])] if rows else []

    def steps(values: Sequence[float | None]) -> list[float | None]:
        shown = [None if value is None else round(value / 1e3, 3) for value in values]
        return [*shown, *shown[-1:]]

    lines = (
        ("Baseline", [row[2] for row in rows], {"color": _var("slate"), "width": 2, "dash": "dash"}),
        ("Target", [row[3] for row in rows], {"color": _var("verm"), "width": 2.5}),
        ("Metered", [row[4] for row in rows], {"color": _var("blue"), "width": 2}),
    )
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": starts + ends,
            "y": steps(values),
            "line": {**line, "shape": "hv"},
            "connectgaps": False,
            "hovertemplate": "%{y:,.6~g} kW",
        }
        for name, values, line in lines
    ]
    unproved = [
        {
            "type": "rect",
            "x0": _local(begin_at),
            "x1": _local(end_at),
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"width": 0},
            "fillcolor": "var(--sy-t-gold)",
            "layer": "below",
        }
        for begin_at, end_at, *_, is_proved in rows
        if not is_proved
    ]
    layout: Figure = {
        "xaxis": {"type": "date", "tickformat": "%H:%M\n%a %-d %b"},
        "yaxis": {"title": {"text": "kW, not from 0"}, "nticks": 6},
        "shapes": unproved[:500],
        "meta": _SMALL,
    }
    return {"data": traces, "layout": layout}


def _line(name: str, points: Sequence[tuple[datetime, float]], colour: str, **line: Any) -> Figure:
    """A line of kW."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_local(at) for at, _ in points],
        "y": [round(watts / 1000, 3) for _, watts in points],
        "line": {"color": _var(colour), **line},
        "hovertemplate": "%{y:.1f} kW",
    }


def _band(start_at: datetime, end_at: datetime) -> Figure:
    """The time of an event."""
    return {
        "type": "rect",
        "x0": _local(start_at),
        "x1": _local(end_at),
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "fillcolor": "var(--sy-band)",
        "line": {"width": 0},
        "layer": "below",
    }


def _kw_layout(begin_at: datetime, end_at: datetime, watts: Iterable[float], shapes: list[Figure]) -> Figure:
    """Axes of a chart of kW that does not begin at 0, as its axis says."""
    levels = [one / 1000 for one in watts]
    low, high = min(levels, default=0.0), max(levels, default=1.0)
    pad = max((high - low) * 0.12, high * 0.01, 0.01)
    return {
        "xaxis": {
            "type": "date",
            "tickformat": "%H:%M\n%a %-d %b",
            "range": [_local(begin_at), _local(end_at)],
        },
        "yaxis": {
            "range": [max(0.0, low - pad), high + pad],
            "nticks": 5,
            "title": {"text": "kW, not from 0"},
        },
        "shapes": shapes,
        "meta": _SMALL,
    }


def plan_chart(
    curve: Sequence[tuple[datetime, float]],
    *,
    base_w: float,
    limit_w: float,
    start_at: datetime,
    end_at: datetime,
    now: datetime,
) -> Figure:
    """A plan before it is committed: the load without it and with it, against the limit while that binds."""
    lasts = end_at - now
    begin_at, until_at = now - lasts / 12, end_at + lasts / 12
    traces = [
        _line("Without plan", [(begin_at, base_w), (until_at, base_w)], "slate", width=1.6, dash="dash"),
        _line("With plan", [(begin_at, base_w), *curve], "blue", width=2.4),
        _line("Limit", [(start_at, limit_w), (end_at, limit_w)], "verm", width=3),
    ]
    levels = [base_w, limit_w, *(watts for _, watts in curve)]
    return {
        "data": traces,
        "layout": _kw_layout(begin_at, until_at, levels, [_band(start_at, end_at), _now_line(now)]),
    }


def event_chart(
    load: Sequence[tuple[datetime, float]],
    *,
    limit_w: float | None,
    reference_w: float | None,
    begin_at: datetime,
    start_at: datetime,
    end_at: datetime,
    until_at: datetime,
    now: datetime,
) -> Figure:
    """An event: the load by minute against its target, and what it counts from."""
    traces = [_line("Load", load, "blue", width=2.2)]
    levels = [watts for _, watts in load]
    if reference_w is not None:
        points = [(begin_at, reference_w), (until_at, reference_w)]
        traces.append(_line("Reference", points, "slate", width=1.6, dash="dash"))
        levels.append(reference_w)
    if limit_w is not None:
        traces.append(_line("Limit", [(start_at, limit_w), (end_at, limit_w)], "verm", width=3))
        levels.append(limit_w)
    shapes = [_band(start_at, end_at), _now_line(now)]
    return {"data": traces, "layout": _kw_layout(begin_at, until_at, levels, shapes)}


def thinned(points: Iterable[tuple[datetime, float]], most: int) -> list[tuple[datetime, float]]:
    """At most about `most` of the points, evenly taken; the last one stays."""
    every = list(points)
    step = max(1, -(-len(every) // most))
    kept = every[::step]
    if every and kept[-1] != every[-1]:
        kept.append(every[-1])
    return kept


def load_chart(
    draw: Mapping[str, Sequence[tuple[datetime, float]]],
    *,
    forecast: Sequence[tuple[datetime, float]],
    limit_w: float | None,
    bands: Sequence[tuple[datetime, datetime, str]],
    since: datetime,
    now: datetime,
    until: datetime,
) -> Figure:
    """Load of the past, stacked by domain, and the load that is expected, against the limit of now.

    Args:
        draw: By name, instants and watts in order of time.
        forecast: Instants and watts of the whole, from now on; each holds until the next.
        bands: Begin, end and name of demand-response events.
    """
    peak_w = max(
        [
            limit_w or 0.0,
            *(watts for points in draw.values() for _, watts in points),
            *(w for _, w in forecast),
        ],
        default=0.0,
    )
    unit, divisor = ("MW", 1e6) if peak_w >= 1e6 else ("kW", 1e3)
    hover = f"%{{y:.2f}} {unit}"
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "stackgroup": "draw",
            "stackgaps": "interpolate",
            "x": [_local(at) for at, _ in points],
            "y": [round(watts / divisor, 4) for _, watts in points],
            "line": {"color": _var(colour), "width": 1.6},
            "fillcolor": _fill(colour),
            "hovertemplate": hover,
        }
        for colour, (name, points) in zip(_COLOURS, draw.items(), strict=False)
    ]
    if forecast:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Expected",
                "x": [_local(at) for at, _ in forecast],
                "y": [round(watts / divisor, 4) for _, watts in forecast],
                "line": {"color": _var("slate"), "width": 1.8, "dash": "dot", "shape": "hv"},
                "hovertemplate": hover,
            }
        )
    if limit_w is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Limit",
                "x": [_local(since), _local(until)],
                "y": [round(limit_w / divisor, 4)] * 2,
                "line": {"color": _var("verm"), "width": 2, "dash": "dash"},
                "hovertemplate": hover,
            }
        )
    shapes = [_now_line(now)] + [
        {
            "type": "rect",
            "x0": _local(max(begin, since)),
            "x1": _local(min(end, until)),
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "layer": "below",
            "line": {"width": 0},
            "fillcolor": "var(--sy-band)",
        }
        for begin, end, _ in bands
        if end > since and begin < until
    ]
    layout: Figure = {
        "xaxis": {"type": "date", "tickformat": "%H:%M\n%a %-d %b", "range": [_local(since), _local(until)]},
        "yaxis": {"rangemode": "tozero", "title": {"text": unit}, "nticks": 6},
        "shapes": shapes,
        "meta": _SMALL,
    }
    return {"data": traces, "layout": layout}
