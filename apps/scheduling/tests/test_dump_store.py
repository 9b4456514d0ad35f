"""Passes that are kept, on a real database, and how they are handed out."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from rest_framework.test import APIClient

from apps.core import clock
from apps.inventory.models import Domain
from apps.jobs.tests.builders import fleet, grant, job, person, start, team
from apps.power.models import PowerLimit
from apps.scheduling import dump, dump_store, services
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Fault
from apps.scheduling.models import PassDump
from apps.teams.models import FacilityRole

pytestmark = pytest.mark.django_db


@pytest.fixture
def busy():
    """Something runs, something starts and something waits, with a quota and a limit; returns the member."""
    rack = Domain.objects.create(name="rack", kind="rack")
    PowerLimit.objects.create(domain=rack, limit_w=9_000)
    here = fleet(2, 4, power=rack)
    ours = team(quota={here.kind: 6})
    me, at = person(ours), clock.now()
    private = {"command": ["run", "--key", "hunter2"], "env": {"SECRET": "hunter3"}}
    start(
        job(ours, me, devices=2, time_limit=600.0, at=at, **private),
        here,
        grant(here.nodes[0], (0, 1)),
        at=at,
    )
    job(ours, me, name="starts-now", devices=4, time_limit=60.0, at=at, **private)
    job(ours, me, name="must-wait", devices=4, time_limit=60.0, at=at, **private)
    return me


@pytest.fixture
def refuse(monkeypatch):
    """The checker finds a fault in every plan."""
    fault = Fault("quota", 2, "starts-now takes too much")
    monkeypatch.setattr(services.checker, "check", lambda *_: (fault,))


def plan_once():
    return services._one_pass(clock.now())


def test_a_live_pass_comes_back_and_gives_the_same_plan(busy):
    one = dump_store.dump_now(clock.now())
    back = dump.from_bytes(dump.to_bytes(one))

    assert [len(part) for part in (one.plan.starts, one.plan.waits, one.snapshot.running)] == [1, 1, 1]
    assert planner.plan(back.snapshot, back.policy) == one.plan
    assert dump.to_json(back) == dump.to_json(one)


def test_a_refused_pass_is_kept_and_says_what_was_wrong(busy, refuse):
    done = plan_once()
    kept = dump.from_bytes(dump_store.kept(done.pk))

    assert kept.about["pass_id"] == done.pk
    assert kept.about["faults"] == [{"rule": "quota", "job_id": 2, "message": "starts-now takes too much"}]
    assert dump.differences(kept, planner.plan(kept.snapshot, kept.policy)) == []


def test_no_command_and_no_environment_is_in_a_dump(busy, refuse):
    plan_once()
    assert "hunter" not in json.dumps(dump.to_json(dump.from_bytes(dump_store.kept())))


def test_only_the_last_refused_passes_are_kept(busy, refuse, monkeypatch):
    monkeypatch.setattr(dump_store, "KEPT_REFUSED", 2)
    passes = [plan_once().pk for _ in range(4)]
    assert sorted(PassDump.objects.values_list("pk", flat=True)) == passes[2:]


def test_a_pass_that_went_well_is_not_kept_unless_the_site_says_so(busy, settings):
    plan_once()
    assert not PassDump.objects.exists()

    settings.SWITCHYARD_KEPT_DUMPS = 2
    passes = [plan_once().pk for _ in range(3)]
    assert sorted(PassDump.objects.values_list("pk", flat=True)) == passes[1:]


def test_passes_that_went_well_push_no_refused_one_out(busy, settings, monkeypatch):
    settings.SWITCHYARD_KEPT_DUMPS = 1
    with monkeypatch.context() as broken:
        broken.setattr(services.checker, "check", lambda *_: (Fault("gang", None, "half of it"),))
        refused = plan_once().pk
    well = [plan_once().pk for _ in range(2)]
    assert sorted(PassDump.objects.values_list("pk", flat=True)) == [refused, well[-1]]


def test_a_pass_that_cannot_be_dumped_is_refused_all_the_same(busy, refuse, monkeypatch):
    def fail(_):
        raise TypeError("of a sort nobody thought of")

    monkeypatch.setattr(dump, "to_bytes", fail)
    assert plan_once().is_refused
    assert not PassDump.objects.exists()


# By REST


def get_dump(user, pass_id, **headers):
    client = APIClient()
    client.force_authenticate(user)
    return client.get(f"/api/v1/passes/{pass_id}/dump", **headers)


@pytest.mark.parametrize("role", [FacilityRole.OPERATOR, FacilityRole.AUDITOR, FacilityRole.ADMIN])
@pytest.mark.parametrize("accepts", ["*/*", "application/gzip"])
def test_operators_and_auditors_have_it_without_names_of_jobs(busy, refuse, role, accepts):
    done = plan_once()
    answer = get_dump(person(facility_role=role), done.pk, HTTP_ACCEPT=accepts)

    assert (answer.status_code, answer["Content-Type"]) == (200, "application/gzip")
    back = dump.from_bytes(answer.content)
    told = json.dumps(dump.to_json(back))
    assert not any(word in told for word in ("starts-now", "must-wait", "hunter", "train"))
    assert dump.differences(back, planner.plan(back.snapshot, back.policy)) == []


def test_members_and_strangers_have_no_dump(busy, refuse):
    done = plan_once()
    assert get_dump(busy, done.pk).status_code == 403
    assert get_dump(person(), done.pk).status_code == 403
    assert get_dump(None, done.pk).status_code == 401
    assert get_dump(person(facility_role=FacilityRole.POWER_ADMIN), done.pk).status_code == 403


@pytest.mark.parametrize("accepts", ["*/*", "application/gzip"])
def test_a_pass_that_was_not_kept_is_not_found(busy, accepts):
    answer = get_dump(person(facility_role=FacilityRole.OPERATOR), plan_once().pk, HTTP_ACCEPT=accepts)
    assert answer.status_code == 404
    assert json.loads(answer.content)["code"] == "not_found"


# By command


def run(*words):
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def test_what_a_pass_would_do_now_is_written_and_replayed(busy, tmp_path):
    file = tmp_path / "now.json.gz"
    assert "3 jobs" in run("dump_pass", "--now", file)

    told = run("replay_pass", file)
    assert "2 nodes, 1 running jobs, 2 waiting" in told
    assert "1 starts" in told
    assert "The plan is the same." in told


def test_the_last_kept_pass_is_written_with_names_or_without(busy, refuse, tmp_path):
    done = plan_once()
    run("dump_pass", tmp_path / "whole.json.gz")
    run("dump_pass", "--pass", str(done.pk), "--without-names", tmp_path / "nameless.json.gz")

    whole, nameless = (
        dump.from_bytes((tmp_path / f"{n}.json.gz").read_bytes()) for n in ("whole", "nameless")
    )
    assert [g.name for g in whole.snapshot.queue] == ["starts-now", "must-wait"]
    assert (nameless.is_anonymous, nameless.snapshot.queue[0].name) == (
        True,
        f"job {whole.snapshot.queue[0].id}",
    )


def test_a_plan_that_is_another_one_exits_with_1(busy, tmp_path, capsys):
    one = dump_store.dump_now(clock.now())
    file = tmp_path / "other.json.gz"
    file.write_bytes(dump.to_bytes(replace(one, plan=replace(one.plan, starts=()))))
    out = StringIO()
    with pytest.raises(SystemExit) as left:
        call_command("replay_pass", file, stdout=out)

    assert left.value.code == 1
    assert "starts: were 0, are 1" in out.getvalue()


def test_files_and_passes_that_are_not_there_are_said(tmp_path):
    with pytest.raises(CommandError, match="No pass was kept"):
        call_command("dump_pass", tmp_path / "x")
    with pytest.raises(CommandError, match="cannot be read") as refused:
        call_command("replay_pass", tmp_path / "x")
    assert refused.value.returncode == 2
    (tmp_path / "y").write_text("{}")
    with pytest.raises(CommandError, match="is no dump of a pass"):
        call_command("replay_pass", tmp_path / "y")
