"""The losses ledger: every device-second of capacity, once."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from apps.jobs import services as jobs
from apps.jobs.models import Allocation
from apps.jobs.tests.builders import NOON, end, fleet, job, later, person, team
from apps.scheduling import losses, selectors, services, snapshot
from apps.scheduling.idle import BUCKETS, SPAN, Want, claim
from apps.scheduling.models import CountedLoss, LossClock, LossPart, LossSpan

NAMES = st.sampled_from(["quota", "power", "resources", "priority", "held", "dependency", "reservation"])
WANTS = st.builds(
    Want,
    NAMES,
    st.integers(0, 9),
    st.lists(st.integers(0, 2), max_size=3, unique=True).map(tuple),
    st.booleans(),
)


@given(st.lists(st.integers(0, 12), min_size=3, max_size=3), st.lists(WANTS, max_size=8))
def test_what_is_claimed_and_what_is_left_is_what_was_free(free, wants):
    left = list(free)
    claims = list(claim(left, wants))

    for kind, before in enumerate(free):
        assert left[kind] >= 0
        assert left[kind] + sum(steps for of, _, steps in claims if of == kind) == before
    assert {bucket for _, bucket, _ in claims} <= set(BUCKETS)


@given(
    st.datetimes(min_value=NOON.replace(tzinfo=None), max_value=later(5000).replace(tzinfo=None)),
    st.timedeltas(timedelta(0), timedelta(hours=3)),
)
def test_a_time_is_cut_at_the_quarters_and_none_of_it_is_lost(naive, lasts):
    from_at = naive.replace(tzinfo=NOON.tzinfo)
    pieces = list(losses._spans(from_at, from_at + lasts))

    whole_ms = timedelta(milliseconds=1)
    assert abs(sum(ms for _, ms in pieces) - lasts / whole_ms) < 1
    assert all(ms <= SPAN // whole_ms for _, ms in pieces)
    assert [at for at, _ in pieces] == sorted({at for at, _ in pieces})


db = [pytest.mark.django_db(transaction=True)]


def marked(function):
    for mark in db:
        function = mark(function)
    return function


def running(of, at):
    attempt = Allocation.objects.get(job=of)
    jobs.allocation_started(allocation_id=attempt.pk, fence=attempt.fence, at=at)
    return attempt


def by_bucket(**more):
    total = selectors.summed(selectors.losses(since=NOON, until=later(86_400), **more))
    return {} if total is None else {bucket: amount for bucket, amount in total.device_s.items() if amount}


@marked
def test_what_devices_do_is_counted_from_pass_to_pass():
    fleet(1, 4), (ours := team())
    me = person(ours)
    first = job(ours, me, devices=3, time_limit=6000.0)
    services.run_pass(at=NOON)
    running(first, later(10))
    job(ours, me, devices=2, time_limit=600.0)  # waits: three of four are held
    services.run_pass(at=later(60))
    job(ours, me, devices=2, time_limit=600.0)
    services.run_pass(at=later(100))

    assert by_bucket() == {"starting": 180.0, "no_demand": 60.0, "productive": 120.0, "held": 40.0}
    assert by_bucket(team=ours) == {"starting": 180.0, "productive": 120.0}


@marked
def test_a_count_that_comes_twice_or_late_adds_nothing():
    fleet(1, 2), (ours := team())
    job(ours, person(ours))
    services.run_pass(at=NOON)
    taken = snapshot.take_snapshot(later(50))
    for at in (later(50), later(50), later(20)):
        with transaction.atomic():
            losses.count(taken, (), (), at=at)

    assert by_bucket() == {"starting": 50.0, "no_demand": 50.0}
    assert LossClock.objects.get().counted_to == later(50)


@marked
def test_while_nobody_looked_the_last_state_lasted_and_the_ledger_says_so():
    fleet(1, 1)
    for at in (NOON, later(3 * 3600)):
        with transaction.atomic():
            losses.count(snapshot.take_snapshot(at), (), (), at=at)

    rows = selectors.losses(since=NOON, until=later(86_400))
    assert [row.guessed_s for row in rows] == [900.0] * 12
    assert by_bucket() == {"no_demand": 3 * 3600.0}


@marked
def test_work_that_is_lost_is_moved_to_rework_once_back_from_its_end():
    fleet(1, 2), (ours := team())
    lost = job(ours, person(ours), devices=2, time_limit=90_000.0)
    services.run_pass(at=NOON)
    attempt = running(lost, NOON)
    with transaction.atomic():
        losses.count(snapshot.take_snapshot(NOON), (), (), at=NOON)
    end(attempt, "node_lost", at=later(1000))
    for at in (later(1000), later(1100)):
        with transaction.atomic():
            losses.count(snapshot.take_snapshot(at), (), (), at=at)

    told = by_bucket()
    assert told["rework"] == 2000.0
    assert "productive" not in told
    assert sum(told.values()) == 2 * 1100.0
    assert CountedLoss.objects.count() == 1


@marked
def test_the_database_refuses_parts_that_do_not_sum_to_their_span():
    fleet(1, 1)
    for at in (NOON, later(60)):
        with transaction.atomic():
            losses.count(snapshot.take_snapshot(at), (), (), at=at)

    with pytest.raises(IntegrityError, match="do not sum"), transaction.atomic():
        LossPart.objects.update(amount=Decimal(7))
    with pytest.raises(IntegrityError, match="do not sum"), transaction.atomic():
        LossSpan.objects.update(capacity=Decimal(7))
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE scheduling_losspart SET bucket = 'thin air'")
