"""Real logs against published start times, job by job. The whole of KTH is `manage.py replay`'s to show."""

import csv
import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from django.conf import settings

from apps.simulation.replay.swf import POLICIES, Replay, read_log, start_rows, summary

TRACES = Path(settings.SWITCHYARD_TRACES)
SDSC = TRACES / "swf-sdsc-sp2-1998-first5k" / "SDSC-SP2-1998-first5k.clean.swf.gz"
SDSC_STARTS = TRACES / "reference" / "start-times-SDSC-SP2-1998-first5k.csv.gz"
KTH = TRACES / "swf-kth-sp2-1996" / "KTH-SP2-1996.clean.swf.gz"
KTH_STARTS = TRACES / "reference" / "start-times-KTH-SP2-1996.csv.gz"
MEANS = TRACES / "reference" / "swf-summary.csv"

needs_traces = pytest.mark.skipif(
    not SDSC.exists(), reason=f"the shared traces are not at {TRACES} (SWITCHYARD_TRACES names another place)"
)
COLUMN = {
    "strict": "start_fcfs",
    "easy": "start_easy_batch",
    "easy-sjbf": "start_easy_sjbf_batch",
    "conservative": "start_conservative_batch",
}


@cache
def replayed(path, policy, n_jobs=None):
    with gzip.open(path, "rt") as lines:
        log = read_log(lines)
    replay = Replay(replace(log, jobs=log.jobs[:n_jobs]), log.n_procs, POLICIES[policy])
    for _ in replay.run():
        pass
    return replay


def reference(path, policy):
    with gzip.open(path, "rt") as lines:
        return {int(row["job_id"]): float(row[COLUMN[policy]]) for row in csv.DictReader(lines)}


@needs_traces
@pytest.mark.parametrize("policy", COLUMN)
def test_every_job_of_sdsc_starts_when_the_reference_starts_it(policy):
    replay = replayed(SDSC, policy)
    wanted = reference(SDSC_STARTS, policy)

    assert dict(start_rows(replay)) == wanted


@needs_traces
def test_of_several_ends_in_one_second_each_moves_the_promises_by_itself():
    # In KTH's second 1062652 two jobs end: the two that fit where each was start, and not the wider one before them.
    replay = replayed(KTH, "conservative", 760)
    wanted = reference(KTH_STARTS, "conservative")
    starts = dict(start_rows(replay))

    assert {job_id: starts[job_id] for job_id in range(700, 735)} == {
        job_id: wanted[job_id] for job_id in range(700, 735)
    }


@needs_traces
def test_the_means_of_sdsc_are_the_published_ones():
    told = summary(replayed(SDSC, "easy"))
    with MEANS.open() as lines:
        row = next(
            row
            for row in csv.DictReader(lines)
            if (row["log"], row["algorithm"], row["event_order"])
            == ("SDSC-SP2-1998-first5k", "easy", "batch")
        )

    assert told["mean_wait"] == pytest.approx(float(row["mean_wait_s"]), abs=1e-6)
    assert told["mean_bounded_slowdown"] == pytest.approx(float(row["mean_bounded_slowdown"]), abs=1e-6)
    assert told["utilization"] == pytest.approx(float(row["utilization"]), abs=1e-6)
    assert told["makespan"] == float(row["makespan_s"])


@needs_traces
def test_strict_order_on_the_head_of_kth_is_the_reference():
    # Nobody passes anybody, so what comes later cannot change what came first.
    replay = replayed(KTH, "strict", 2_000)
    wanted = reference(KTH_STARTS, "strict")

    assert all(wanted[job_id] == start_s for job_id, start_s in start_rows(replay))


@needs_traces
@pytest.mark.parametrize("policy", ["shortest", "turnaround"])
def test_serving_the_expected_shortest_first_cuts_the_slowdown_by_a_quarter(policy):
    easy, shortest = (summary(replayed(SDSC, by))["mean_bounded_slowdown"] for by in ("easy", policy))

    assert shortest <= 0.75 * easy


def longest_wait_beyond_easy_s(policy):
    easy = reference(SDSC_STARTS, "easy")
    return max(start_s - easy[job_id] for job_id, start_s in start_rows(replayed(SDSC, policy)))


@needs_traces
def test_a_wide_job_waits_less_beyond_easy_when_width_counts():
    hour_s = 3600

    assert longest_wait_beyond_easy_s("shortest") <= 29 * hour_s
    assert longest_wait_beyond_easy_s("turnaround") <= 23 * hour_s  # as docs/benchmarks.md states it
