"""A comparison as text, for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from apps.simulation.whatif import BASE, WHAT_IF, Comparison, JobPair, figures

MOST_JOBS: Final = 40
_MOST_LEFT_OUT: Final = 10
_FROM: Final = {
    "declared": "as declared",
    "history": "by their owners' last jobs",
    "limit": "by their limits",
    "unknown": "taken as an hour, for nothing is known",
}


def told(comparison: Comparison, *, jobs: bool = False, most_jobs: int | None = MOST_JOBS) -> str:
    """The figures of both runs beside each other; with `jobs` every waiting job too, the most changed first."""
    lines = [*_assumptions(comparison), *_figures(comparison)]
    if jobs:
        lines += ["", *_jobs(comparison, most_jobs)]
    return "\n".join(lines)


def _assumptions(comparison: Comparison) -> Iterator[str]:
    taken = comparison.assumptions
    if comparison.at is not None:
        n_running = sum(job.is_running for job in comparison.live.values())
        n_waiting = len(comparison.live) - n_running
        yield f"From {comparison.at:%Y-%m-%d %H:%M:%S %Z}: {n_running} jobs run, {n_waiting} wait."
    if taken.run_times:
        interval_s = comparison.base.outcome.world.scenario.policy.pass_interval
        yield "A pass at every change." if not interval_s else f"A pass every {interval_s:g} s."
        parts = [f"{n} {_FROM.get(source, source)}" for source, n in taken.run_times.items()]
        yield f"Run times: {', '.join(parts)}."
    yield from taken.notes
    for job in taken.left_out[:_MOST_LEFT_OUT]:
        yield f"Left out: job {job.id} {job.name}: {job.why}."
    if len(taken.left_out) > _MOST_LEFT_OUT:
        yield f"Left out: {len(taken.left_out) - _MOST_LEFT_OUT} more."


def _figures(comparison: Comparison) -> Iterator[str]:
    base = figures(comparison, BASE)
    other = figures(comparison, WHAT_IF) if comparison.what_if is not None else None
    rows: list[Sequence[str]] = [("", "base", "what if", "difference") if other else ("", "base")]

    def row(name: str, key: str, write: Any, part: str | None = None) -> None:
        pair = [run[key] if part is None else run[key].get(part) for run in (base, other) if run is not None]
        cells = ["–" if value is None else write(value) for value in pair]
        if other is not None:
            change = None if None in pair else pair[1] - pair[0]
            cells.append("–" if change is None else _signed(change, write))
        rows.append((name, *cells))

    row("simulated", "horizon_s", duration)
    row("waiting jobs that start", "waiting_jobs_started", _count)
    row("mean wait", "mean_wait_s", duration)
    row("95 % wait at most", "p95_wait_s", duration)
    row("makespan", "makespan_s", duration)
    row("utilization", "utilization", _percent)
    row("preemptions", "preemptions", _count)
    row("lost to them, device-hours", "lost_device_hours", _tenths)
    for bucket in base["losses_share"]:
        if any(run["losses_share"].get(bucket) for run in (base, other) if run is not None):
            row(f"  {bucket}", "losses_share", _percent, bucket)
    # Racks are many; the JSON has them all.
    for domain in _upper_domains(comparison):
        row(f"peak of {domain}", "peak_power_w", _kilowatts, domain)
    return iter(_aligned(rows))


def _upper_domains(comparison: Comparison) -> list[str]:
    run = comparison.what_if or comparison.base
    return [d.name for d in run.outcome.world.scenario.domains if d.kind in ("facility", "hall")]


def _jobs(comparison: Comparison, most: int | None) -> Iterator[str]:
    is_one = comparison.what_if is None
    pairs = sorted(comparison.jobs, key=_by_change)
    shown = pairs if most is None else pairs[:most]
    head = ("job", "team", "starts", "ends") if is_one else (
        "job", "team", "starts", "what if", "later by", "ends", "what if", "later by"
    )  # fmt: skip
    rows: list[Sequence[str]] = [head]
    for pair in shown:
        team = pair.live.team if pair.live is not None else ""
        cells = [pair.name[:40], team[:20]]
        for key in ("start", "end"):
            cells.append(_moment(pair.base, key))
            if not is_one:
                later_s = pair.later_s(key)
                cells.append(_moment(pair.what_if, key))
                cells.append("" if later_s is None else "=" if later_s == 0 else _signed(later_s, duration))
        rows.append(cells)
    yield from _aligned(rows, n_left=2)
    if len(shown) < len(pairs):
        yield f"... and {len(pairs) - len(shown)} more"


def _by_change(pair: JobPair) -> tuple[float, float, str]:
    later_s = pair.later_s("start")
    is_only_in_one = later_s is None and (pair.base is None or pair.what_if is None or _differs(pair))
    start = next((row["start"] for row in (pair.base, pair.what_if) if row and row["start"] is not None), 0)
    return (-abs(later_s or 0) if not is_only_in_one else float("-inf"), float(start), pair.name)


def _differs(pair: JobPair) -> bool:
    assert pair.base is not None
    assert pair.what_if is not None
    return bool((pair.base["start"] is None) != (pair.what_if["start"] is None))


def _moment(row: Mapping[str, Any] | None, key: str) -> str:
    if row is None:
        return ""
    if row[key] is None:
        return str(row["state"])
    text = f"+{duration(row[key])}"
    return text if key == "start" or row["state"] == "succeeded" else f"{text} {row['state']}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds; days in front where there are any."""
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    text = f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}d {text}" if days else text


def _signed(value: float, write: Any) -> str:
    return write(value) if value == 0 else f"{'+' if value > 0 else '−'}{write(abs(value))}"


def _count(value: float) -> str:
    return str(round(value))


def _tenths(value: float) -> str:
    return f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _kilowatts(value: float) -> str:
    return f"{value / 1000:.1f} kW"


def _aligned(rows: Sequence[Sequence[str]], *, n_left: int = 1) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < n_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
