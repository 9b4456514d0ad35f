"""Whole passes on a real PostgreSQL: what is read, what is decided, what is written."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from threading import Event as Signal

import pytest
from django.db import connection

from apps.events.models import Event
from apps.events.services import record
from apps.inventory import outside
from apps.inventory.models import Backend, Domain, Health
from apps.jobs import services as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, DeviceClaim, Job, Placement
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, request, start, team
from apps.power.models import PowerLimit, PowerReading
from apps.scheduling import services, snapshot
from apps.scheduling.engine.facts import Fault
from apps.scheduling.models import Forecast, Pass, PolicySetting, Reason, TeamUse, UtilizationSample

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_pass_starts_what_fits_and_says_why_the_rest_waits():
    here, ours = fleet(1, 4), team()
    me = person(ours)
    first = job(ours, me, devices=4, time_limit=600.0)
    second = job(ours, me, devices=2, time_limit=600.0)
    done = services.run_pass(at=NOON)

    assert done is not None
    assert (done.n_queued, done.n_started, done.n_waiting) == (2, 1, 1)
    assert set(done.phase_ms) == {"load", "plan", "check", "commit", "losses"}
    assert Job.objects.get(pk=first.pk).state == State.STARTING
    assert here.claimed() == 4
    reason = Reason.objects.get()
    assert (reason.job_id, reason.code, reason.rank) == (second.pk, "resources", 1)
    assert reason.expected_start_at == later(600)


def test_a_start_wakes_those_who_carry_it_out():
    fleet(), (ours := team())
    made = job(ours, person(ours))
    services.run_pass(at=NOON)

    event = Event.objects.get(kind="allocation.bound")
    assert event.data["job_id"] == made.pk


def test_a_pass_goes_home_if_nothing_happened():
    fleet(), (ours := team())
    job(ours, person(ours))
    services.run_pass(at=NOON)

    assert services.run_pass(at=later(1)) is None
    assert Pass.objects.count() == 1


def test_what_was_logged_meanwhile_is_seen():
    fleet(1, 1), (ours := team())
    me = person(ours)
    for number in range(2):
        job(ours, me)
        assert services.run_pass(at=later(number)) is not None
    assert Reason.objects.get().code == "resources"


def test_a_commit_that_was_late_is_not_missed():
    # Its event has a lower id than the pass's own picture knows of, and commits after it.
    fleet(), (ours := team())
    me = person(ours)
    is_written, may_commit = Signal(), Signal()

    def submit_slowly() -> None:
        from django.db import transaction

        with transaction.atomic():
            job(ours, me)
            is_written.set()
            may_commit.wait(10)
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(submit_slowly)
        assert is_written.wait(10)
        record("node.changed", subject_kind="node", at=NOON)
        services.run_pass(at=NOON)
        may_commit.set()
        slow.result(10)
    done = services.run_pass(at=later(1))

    assert done is not None
    assert done.n_started == 1


def test_a_boundary_of_time_makes_a_pass_due():
    fleet(), (ours := team())
    made = job(ours, person(ours), not_before=later(60))
    services.run_pass(at=NOON)
    assert Reason.objects.get(job=made).code == "not_before"

    assert services.run_pass(at=later(59)) is None
    done = services.run_pass(at=later(60))
    assert done is not None
    assert done.n_started == 1


def test_a_start_that_failed_is_tried_again_when_its_time_has_come():
    fleet(), (ours := team())
    job(ours, person(ours))
    services.run_pass(at=NOON)
    end(Allocation.objects.get(), "start_failed", at=later(1))
    services.run_pass(at=later(2))

    assert Reason.objects.get().code == "not_before"
    done = services.run_pass(at=later(11))
    assert done is not None
    assert done.n_started == 1


def test_the_reason_goes_when_the_job_starts():
    here, ours = fleet(1, 1), team()
    me = person(ours)
    allocation = start(job(ours, me), here)
    waiting = job(ours, me)
    services.run_pass(at=NOON)
    assert Reason.objects.get().job_id == waiting.pk

    end(allocation, "succeeded", at=later(5))
    services.run_pass(at=later(5))
    assert not Reason.objects.exists()


def test_reasons_that_stay_the_same_are_not_written_again():
    here, ours = fleet(1, 1), team()
    me = person(ours)
    start(job(ours, me), here)
    job(ours, me)
    first = services.run_pass(at=NOON)
    record("node.changed", subject_kind="node", at=NOON)
    second = services.run_pass(at=later(1))

    assert first is not None
    assert second is not None
    assert Reason.objects.get().pass_id == first.pk


def test_a_plan_that_breaks_a_rule_is_refused_whole_and_kept(monkeypatch):
    fleet(), (ours := team())
    job(ours, person(ours))
    monkeypatch.setattr(services.checker, "check", lambda *_: (Fault("device", 1, "is taken"),))
    done = services.run_pass(at=NOON)

    assert done is not None
    assert done.is_refused
    assert done.faults[0]["message"] == "is taken"
    assert not Allocation.objects.exists()
    assert Event.objects.filter(kind="pass.refused").exists()


def test_a_decision_that_went_stale_is_dropped_and_planned_anew(monkeypatch):
    here, ours = fleet(1, 1), team()
    me = person(ours)
    job(ours, me)
    real = services.checker.check

    def someone_is_faster(*arguments):
        if not Allocation.objects.exists():
            start(job(ours, me), here)
        return real(*arguments)

    monkeypatch.setattr(services.checker, "check", someone_is_faster)
    services.run_pass(at=NOON)

    assert Pass.objects.order_by("id")[0].n_dropped == 1
    assert Reason.objects.get().code == "resources"
    assert ledger_faults() == []


def test_a_limit_that_changed_meanwhile_undoes_the_plan(monkeypatch):
    hall = Domain.objects.create(name="hall", kind="hall")
    limit = PowerLimit.objects.create(domain=hall, limit_w=1e6)
    fleet(1, 1, power=hall)
    ours = team()
    job(ours, person(ours))
    real = services.checker.check

    def lower(*arguments):
        PowerLimit.objects.filter(pk=limit.pk, version=1).update(limit_w=100.0, version=2)
        return real(*arguments)

    monkeypatch.setattr(services.checker, "check", lower)
    services.run_pass(at=NOON)
    assert not Allocation.objects.exists()
    services.run_pass(at=later(2))
    assert Reason.objects.get().code == "power"


def test_what_happens_during_a_pass_is_seen_by_whoever_runs_it(monkeypatch):
    fleet(1, 2), (ours := team())
    me = person(ours)
    job(ours, me)
    real, n_checks = services.checker.check, []

    def somebody_submits(*arguments):
        n_checks.append(1)
        if len(n_checks) == 1:
            job(ours, me)
        return real(*arguments)

    monkeypatch.setattr(services.checker, "check", somebody_submits)
    services.run_pass(at=NOON)
    assert Job.objects.filter(state=State.STARTING).count() == 2


def test_one_pass_at_a_time():
    fleet(2, 8), (ours := team())
    me = person(ours)
    for _ in range(8):
        job(ours, me, devices=2)
    gate = Barrier(4)

    def plan(_: int) -> None:
        gate.wait()
        services.run_pass(at=NOON)
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(plan, range(4)))
    assert Pass.objects.filter(n_dropped__gt=0).count() == 0
    assert Job.objects.filter(state=State.STARTING).count() == 8
    assert ledger_faults() == []


def test_a_job_whose_dependency_failed_behind_our_back_is_cancelled():
    fleet(), (ours := team())
    me = person(ours)
    first = job(ours, me)
    second = job(ours, me, after=[first.pk])
    Job.objects.filter(pk=first.pk).update(state=State.FAILED, ended_at=NOON)
    services.run_pass(at=NOON)

    second.refresh_from_db()
    assert (second.state, second.end_code) == (State.CANCELLED, "dependency_never_satisfied")


def test_a_job_with_a_command_goes_to_a_real_cluster_and_one_without_is_played():
    real, played, ours = fleet(1, 4, kind="A"), fleet(4, 8, kind="A", backend=Backend.SIMULATED), team()
    me = person(ours)
    runs = job(ours, me, devices=4)
    plays = jobs.submit_job(request=request(ours).model_copy(update={"command": None}), actor=me, at=NOON)
    services.run_pass(at=NOON)

    assert Allocation.objects.get(job=runs).cluster == real.cluster
    assert Allocation.objects.get(job=plays).cluster == played.cluster


def test_a_gang_with_fractions_is_read_back_as_it_was_granted():
    fleet(2, 2), (ours := team())
    job(ours, person(ours), replicas=3, devices=0.5)
    services.run_pass(at=NOON)
    remembered = snapshot.take_snapshot(NOON).snapshot.running[0].placing
    snapshot.forget()
    read = snapshot.take_snapshot(NOON).snapshot.running[0].placing

    assert remembered == read
    assert sum(share.n_replicas for share in read) == 3
    assert sum(share.share_steps for share in read) == 1_500_000


def test_groups_get_ranks_in_order():
    fleet(1, 4), (ours := team())
    groups = [{"name": "head", "devices": 0}, {"name": "workers", "replicas": 4}]
    job(ours, person(ours), groups=groups)
    services.run_pass(at=NOON)

    assert list(Placement.objects.order_by("first_rank").values_list("group_index", "first_rank", "n_replicas")) == [
        (0, 0, 1), (1, 1, 4),
    ]  # fmt: skip
    assert DeviceClaim.objects.count() == 4


def test_use_decays_and_counts_what_was_held_between_passes():
    here, ours = fleet(1, 2), team()
    me = person(ours)
    PolicySetting.objects.create(values={"half_life_s": 3600.0})
    allocation = start(job(ours, me), here, grant(here.nodes[0], (0, 1)))
    services.run_pass(at=NOON)
    end(allocation, "succeeded", at=later(60))
    services.run_pass(at=later(3660))

    # 2 devices for 60 s, an hour ago and half as much worth since.
    assert TeamUse.objects.get().decayed_device_s == pytest.approx(60, rel=0.02)


def test_a_failed_node_is_not_used_until_it_has_cooled_down():
    here, ours = fleet(1, 1), team()
    node = here.nodes[0]
    node.health, node.cooldown_until_at = Health.HEALTHY, later(30)
    node.save()
    job(ours, person(ours))
    services.run_pass(at=NOON)

    assert not Allocation.objects.exists()
    services.run_pass(at=later(30))
    assert Allocation.objects.exists()


def test_a_promise_is_kept_as_a_forecast_and_not_repeated():
    here, ours = fleet(1, 1), team()
    me = person(ours)
    start(job(ours, me, time_limit=600.0), here)
    waiting = job(ours, me, time_limit=60.0)
    services.run_pass(at=NOON)
    record("node.changed", subject_kind="node", at=NOON)
    services.run_pass(at=later(1))

    forecast = Forecast.objects.get()
    assert (forecast.job_id, forecast.expected_start_at) == (waiting.pk, later(600))


def test_the_roll_up_keeps_one_sample_a_minute():
    hall = Domain.objects.create(name="hall", kind="hall")
    here, ours = fleet(1, 4, power=hall, idle_w=100), team()
    start(job(ours, person(ours)), here)
    for seconds in (0, 20, 70):
        services.roll_up(at=later(seconds))

    assert UtilizationSample.objects.count() == 2
    sample = UtilizationSample.objects.first()
    assert sample is not None
    assert (sample.n_capacity, sample.claimed, sample.n_unhealthy) == (4, 1.0, 0)
    assert set(PowerReading.objects.values_list("draw_w", flat=True)) == {100 + 3 * 70 + 700.0}


def test_a_preview_says_where_and_when_and_writes_nothing():
    here, ours = fleet(1, 2), team()
    me = person(ours)
    free = services.preview(request=request(ours), actor=me, at=NOON)
    assert (free.would_start, free.expected_start_at, free.cluster) == (True, NOON, here.cluster.name)

    start(job(ours, me, time_limit=600.0), here, grant(here.nodes[0], (0, 1)))
    full = services.preview(request=request(ours), actor=me, at=NOON)
    assert (full.would_start, full.expected_start_at) == (False, later(600))
    assert (full.reason or {})["code"] == "resources"
    assert Job.objects.count() == 1


def test_a_preview_names_what_it_would_displace():
    fleet(1, 1), (ours := team())
    me = person(ours)
    waiting = job(ours, me)
    assert services.preview(request=request(ours, priority=5), actor=me, at=NOON).displaces == (waiting.pk,)


def test_everything_ends_and_use_is_zero():
    here, ours = fleet(2, 4), team()
    me = person(ours)
    for number in range(30):
        job(ours, me, devices=(1, 2, 0.5, 4)[number % 4], time_limit=60.0)
    at = NOON
    for _ in range(60):
        services.run_pass(at=at)
        for allocation in Allocation.objects.filter(ended_at=None):
            jobs.allocation_started(allocation_id=allocation.pk, fence=allocation.fence, at=at)
            end(allocation, "succeeded", at=at + timedelta(seconds=30))
        at += timedelta(seconds=31)
        if not Job.objects.exclude(state=State.SUCCEEDED).exists():
            break

    assert not Job.objects.exclude(state=State.SUCCEEDED).exists()
    assert (here.claimed(), ledger_faults()) == (0, [])


def test_a_house_without_anything_in_it_is_planned_too():
    done = services.run_pass(at=NOON)
    services.roll_up(at=NOON)

    assert done is not None
    assert (done.n_queued, done.is_refused) == (0, False)
    assert not UtilizationSample.objects.exists()


def test_a_switched_off_cluster_takes_nothing_until_it_is_on_again():
    here, ours = fleet(), team()
    job(ours, person(ours))
    here.cluster.is_enabled = False
    here.cluster.save()
    services.run_pass(at=NOON)
    assert not Allocation.objects.exists()

    here.cluster.is_enabled = True
    here.cluster.save()
    record("cluster.enabled", subject_kind="cluster", at=NOON)
    services.run_pass(at=later(1))
    assert Allocation.objects.exists()


def test_an_array_fills_up_as_its_jobs_end():
    fleet(2, 4), (ours := team())
    jobs.submit_jobs(
        requests=[request(ours, array={"size": 5, "max_running": 2})], actor=person(ours), at=NOON
    )
    n_running = []
    for seconds in range(0, 60, 10):
        services.run_pass(at=later(seconds))
        allocations = list(Allocation.objects.filter(ended_at=None))
        n_running.append(len(allocations))
        for allocation in allocations:
            end(allocation, "succeeded", at=later(seconds + 5))

    assert n_running == [2, 2, 1, 0, 0, 0]


def test_a_device_that_somebody_else_holds_is_given_to_nobody_before_it_is_free():
    here, ours = fleet(1, 2), team()
    me = person(ours)
    use = outside.Use(node_id=here.nodes[0].pk, key="17", device_indices=(0,), until_at=later(60))
    outside.take_uses(cluster_id=here.cluster.pk, uses=[use], at=NOON)
    small, wide = job(ours, me, devices=1, time_limit=30.0), job(ours, me, devices=2, time_limit=30.0)
    services.run_pass(at=NOON)

    assert DeviceClaim.objects.get(placement__allocation__job=small).device.index == 1
    assert Reason.objects.get(job=wide).expected_start_at == later(60)
    assert Pass.objects.filter(is_refused=True).count() == 0

    end(Allocation.objects.get(job=small), "succeeded", at=later(30))
    outside.take_uses(cluster_id=here.cluster.pk, uses=[], at=later(40))
    services.run_pass(at=later(40))
    assert Job.objects.get(pk=wide.pk).state == State.STARTING


def test_a_start_on_a_device_that_somebody_took_meanwhile_is_dropped():
    here, ours = fleet(1, 2), team()
    made = job(ours, person(ours), devices=1)
    use = outside.Use(node_id=here.nodes[0].pk, key="17", device_indices=(0,))
    outside.take_uses(cluster_id=here.cluster.pk, uses=[use], at=NOON)
    decision = jobs.Decision(
        job_id=made.pk, cluster_id=here.cluster.pk, placements=(grant(here.nodes[0], (0,)),)
    )

    outcomes = jobs.allocate_many(decisions=[decision], pass_id=None, at=NOON)

    assert [why for _, why in outcomes.stale] == [f"device 0 of {here.nodes[0].name} is held outside"]
