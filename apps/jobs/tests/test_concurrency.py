"""Many at once, on a real PostgreSQL: nothing is given away twice, nothing is done twice, nothing is lost."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import close_old_connections, connection

from apps.events.models import Event
from apps.jobs import services
from apps.jobs.errors import Stale
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import (
    NOON,
    allocate,
    end,
    fleet,
    grant,
    job,
    later,
    person,
    request,
    start,
    team,
)  # fmt: skip

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each call answered or raised, all begun together on connections of their own."""
    gate = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait()
        try:
            return call()
        except Exception as error:  # every outcome is looked at
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def unforeseen(outcomes: Sequence[Any]) -> list[Exception]:
    return [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, Stale)]


def test_of_many_who_want_one_device_one_gets_it():
    here, ours = fleet(1, 1), team()
    me = person(ours)
    made = [job(ours, me) for _ in range(6)]
    outcomes = at_once(*(lambda one=one: allocate(one, here) for one in made))

    assert unforeseen(outcomes) == []
    assert sum(isinstance(one, Allocation) for one in outcomes) == 1
    assert ledger_faults() == []


def test_one_job_is_not_started_twice():
    here, ours = fleet(1, 8), team()
    made = job(ours, person(ours))
    outcomes = at_once(*(lambda i=i: allocate(made, here, grant(here.nodes[0], (i,))) for i in range(6)))

    assert unforeseen(outcomes) == []
    assert Allocation.objects.count() == 1
    assert here.claimed() == 1


def test_gangs_that_want_each_others_devices_never_wait_in_a_circle():
    here, ours = fleet(2, 4), team()
    me = person(ours)
    for at in range(5):
        made = [job(ours, me) for _ in range(4)]
        first, second = (grant(node, (0, 1, 2, 3)) for node in here.nodes)
        orders = [(first, second), (second, first), (first, second), (second, first)]
        outcomes = at_once(
            *(lambda one=one, o=o: allocate(one, here, *o) for one, o in zip(made, orders, strict=True))
        )
        assert unforeseen(outcomes) == []
        (won,) = [one for one in outcomes if isinstance(one, Allocation)]
        end(won, "succeeded", at=later(at))

    assert here.claimed() == 0


def test_an_end_that_is_reported_by_many_is_written_once():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours)), here)
    outcomes = at_once(*(lambda: end(allocation, "succeeded", at=later(5)) for _ in range(6)))

    assert unforeseen(outcomes) == []
    assert Event.objects.filter(kind="allocation.ended").count() == 1
    assert ledger_faults() == []


def test_a_stop_and_a_start_at_once_leave_a_job_that_is_told_to_stop_or_never_started():
    here, ours = fleet(), team()
    me = person(ours)
    for number in range(8):
        made = job(ours, me)
        outcomes = at_once(
            lambda made=made, number=number: allocate(made, here, grant(here.nodes[0], (number % 4,))),
            lambda made=made: services.stop_job(job_id=made.pk, actor=me, at=NOON),
        )
        assert unforeseen(outcomes) == []
        made.refresh_from_db()
        allocation = Allocation.objects.filter(job=made).first()
        if allocation is None:
            assert made.state == State.CANCELLED
        else:
            assert (made.state, allocation.desired_state) == (State.STARTING, "stop")
            end(allocation, "cancelled", at=later(number))

    assert (ledger_faults(), here.claimed()) == ([], 0)


def test_a_key_used_by_many_at_once_makes_one_job():
    fleet()
    ours = team()
    me = person(ours)
    outcomes = at_once(
        *(
            lambda: services.submit_job(request=request(ours), actor=me, at=NOON, idempotency_key="k")
            for _ in range(6)
        )
    )

    assert unforeseen(outcomes) == []
    assert {one.pk for one in outcomes} == {Job.objects.get().pk}


def test_chains_that_break_while_others_start_leave_no_faults():
    here, ours = fleet(1, 8), team()
    me = person(ours)
    heads = [job(ours, me) for _ in range(3)]
    tails = [job(ours, me, after=[one.pk for one in heads]) for _ in range(3)]
    others = [job(ours, me) for _ in range(3)]
    running = [start(one, here, grant(here.nodes[0], (i,))) for i, one in enumerate(heads)]
    outcomes = at_once(
        *(lambda one=one: end(one, "failed", at=later(5)) for one in running),
        *(
            lambda i=i, one=one: allocate(one, here, grant(here.nodes[0], (3 + i,)))
            for i, one in enumerate(others)
        ),
        *(lambda one=one: services.stop_job(job_id=one.pk, actor=me, at=NOON) for one in tails),
    )

    assert unforeseen(outcomes) == []
    assert ledger_faults() == []
    assert set(Job.objects.filter(pk__in=[one.pk for one in tails]).values_list("state", flat=True)) == {
        "cancelled"
    }


def test_use_is_zero_after_all_have_ended():
    here, ours = fleet(2, 4), team()
    me = person(ours)
    made = [job(ours, me, devices=0.25) for _ in range(24)]

    def live(number: int) -> None:
        where = grant(here.nodes[number % 2], (number % 4,), share="0.25")
        try:
            allocation = start(made[number], here, where)
        except Stale:
            return
        finally:
            close_old_connections()
        end(allocation, ("succeeded", "failed", "node_lost", "timed_out")[number % 4], at=later(9))

    outcomes = at_once(*(lambda n=n: live(n) for n in range(24)))
    assert [one for one in outcomes if one is not None] == []
    assert (here.claimed(), ledger_faults()) == (0, [])
