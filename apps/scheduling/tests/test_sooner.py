"""What would start a waiting job sooner: each way that is told really does, and is what the request then says."""

import pytest

from apps.jobs import services as ledger
from apps.jobs.errors import NotNow, Refused
from apps.jobs.models import Job
from apps.jobs.tests.builders import Fleet, end, fleet, grant, job, later, person, start, team
from apps.scheduling import services, sooner
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db(transaction=True)


def full(here: Fleet, n: int, *, lasts_s: float = 3600.0) -> None:
    """A firm job on the first n devices of the first node."""
    ours = team("busy")
    running = job(ours, person(ours), devices=n, time_limit=lasts_s, preemptible=False)
    start(running, here, grant(here.nodes[0], tuple(range(n))))


def by_key(found: sooner.Sooner) -> dict[str, sooner.Way]:
    return {way.key: way for way in found.ways}


def apply(way: sooner.Way, of: Job, me) -> Job:
    changes = dict(way.changes)
    return ledger.update_job(
        job_id=of.pk,
        actor=me,
        at=later(2),
        time_limit_s=changes.pop("time_limit", None),
        replicas=changes.pop("replicas", None),
        asks=changes,
    )


def test_a_smaller_job_starts_now_and_does_when_it_is_applied():
    here = fleet(1, 8)
    full(here, 4)
    ours = team("ours")
    me = person(ours)
    waiting = job(ours, me, replicas=6, devices=1, time_limit=600.0)
    services.run_pass(at=later(1))
    found = sooner.ways_of(waiting, at=later(1))

    assert (found.starts_now, found.starts_at) == (False, later(3600))
    way = by_key(found)["smaller"]
    assert (way.starts_now, way.changes) == (True, {"replicas": 3})
    waiting.refresh_from_db()
    assert waiting.spec["replicas"] == 6  # nothing was written
    apply(way, waiting, me)
    services.run_pass(at=later(3))
    waiting.refresh_from_db()
    assert (waiting.state, waiting.n_devices) == ("starting", 3)


def test_another_type_and_a_wider_spread_are_told_where_they_help_and_nowhere_else():
    here = fleet(1, 8)
    full(here, 8)
    other = fleet(1, 8, kind="H200")
    ours = team("ours")
    me = person(ours)
    waiting = job(ours, me, devices=2, accelerators=[here.kind.name], time_limit=600.0)
    found = by_key(sooner.ways_of(waiting, at=later(1)))

    assert set(found) == {f"type-{other.kind.name}"}
    apply(found[f"type-{other.kind.name}"], waiting, me)
    services.run_pass(at=later(3))
    waiting.refresh_from_db()
    assert waiting.state == "starting"
    assert waiting.spec["accelerators"] == [here.kind.name, other.kind.name]


def test_a_limit_as_long_as_such_jobs_take_lets_it_in_before_others():
    here = fleet(1, 8)
    ours = team("ours")
    me = person(ours)
    for n in range(2):
        past = job(ours, me, name="train", devices=1, time_limit=86_400.0)
        attempt = start(past, here, grant(here.nodes[0], (0,)), at=later(600 * n - 4000))
        end(attempt, "succeeded", at=later(600 * n - 3700))
    full(here, 4)
    large = job(ours, me, name="large", devices=8, time_limit=600.0, priority=10)
    waiting = job(ours, me, name="train", devices=4, time_limit=86_400.0)
    services.run_pass(at=later(1))
    found = sooner.ways_of(waiting, at=later(1))

    way = by_key(found)["shorter"]
    assert way.starts_now
    assert way.changes["time_limit"] < 3600
    apply(way, waiting, me)
    services.run_pass(at=later(3))
    states = {one.pk: one.state for one in Job.objects.filter(pk__in=(large.pk, waiting.pk))}
    assert states == {large.pk: "queued", waiting.pk: "starting"}


def test_who_is_next_anyway_needs_no_way_and_who_is_held_has_none():
    here = fleet(1, 8)
    ours = team("ours")
    me = person(ours)
    first = job(ours, me, devices=1, time_limit=600.0, accelerators=[here.kind.name])
    held = job(ours, me, devices=1, time_limit=600.0, held=True)
    assert sooner.ways_of(first, at=later(1)).starts_now
    assert sooner.ways_of(held, at=later(1)).ways == ()


def test_what_was_asked_changes_only_while_it_waits_and_only_to_what_could_run():
    here = fleet(2, 8)
    ours = team("ours")
    me = person(ours)
    waiting = job(ours, me, devices=1, time_limit=600.0)
    with pytest.raises(Refused):
        ledger.update_job(job_id=waiting.pk, actor=me, at=later(1), asks={"accelerators": ["B900"]})
    with pytest.raises(Refused):
        ledger.update_job(job_id=waiting.pk, actor=me, at=later(1), asks={"topology": {"required": "hall"}})
    ledger.update_job(
        job_id=waiting.pk, actor=me, at=later(1), asks={"flexibility": 4, "accelerators": [here.kind.name]}
    )
    ledger.update_job(job_id=waiting.pk, actor=me, at=later(1), asks={"accelerators": None})
    waiting.refresh_from_db()
    assert waiting.spec["flexibility"] == 4
    assert "accelerators" not in waiting.spec
    start(waiting, here, grant(here.nodes[0], (0,)))
    with pytest.raises(NotNow):
        ledger.update_job(job_id=waiting.pk, actor=me, at=later(2), asks={"flexibility": 0})


def test_ways_by_rest_are_for_who_may_change_the_job_and_patch_takes_them():
    here = fleet(1, 8)
    full(here, 4, lasts_s=1e8)  # by the clock of now
    ours = team("ours")
    me, stranger = person(ours), person()
    waiting = job(ours, me, replicas=6, devices=1, time_limit=600.0)
    address = f"/api/v1/jobs/{waiting.pk}"
    assert client(stranger).get(f"{address}/sooner").status_code in (403, 404)
    ways = client(me).get(f"{address}/sooner").json()["ways"]
    smaller = next(way for way in ways if way["key"] == "smaller")
    assert client(me).patch(address, smaller["changes"], format="json").status_code == 200
    waiting.refresh_from_db()
    assert waiting.spec["replicas"] == 3
    assert client(me).patch(address, {"topology": {"required": "leaf"}}, format="json").status_code in (
        200,
        422,
        400,
    )
    assert client(me).patch(address, {"flexibility": 9}, format="json").status_code == 400
    assert client(me).patch(address, {"flexibility": None}, format="json").status_code == 400
