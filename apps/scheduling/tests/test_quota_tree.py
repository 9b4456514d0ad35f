"""What the engine is told of a tree of teams."""

import pytest

from apps.core import clock
from apps.inventory import services as inventory
from apps.jobs.models import Allocation
from apps.jobs.tests.builders import NOON, fleet, grant, job, later, person, start, team
from apps.scheduling import quota_effects, services, snapshot
from apps.teams import loans
from apps.teams import services as teams
from apps.teams.models import Quota
from apps.teams.services import QuotaEntry, set_member

pytestmark = pytest.mark.django_db


def test_a_team_that_gave_its_devices_to_sub_teams_does_not_own_them_twice():
    at = clock.now()
    inventory.create_accelerator_type(name="H100", tdp_w=700, actor=None, at=at)
    vision = teams.create_team(name="vision", actor=None, at=at)
    train = teams.create_team(name="train", parent=vision, actor=None, at=at)
    for one, devices in ((vision, 40), (train, 24)):
        teams.set_quota(team=one, entries=[QuotaEntry("H100", devices)], actor=None, at=at, version=1)

    told = {one.name: dict(one.entitlement) for one in snapshot.take_snapshot(at).snapshot.teams}

    assert told == {"vision": {0: 16}, "train": {0: 24}}


def own(of, here, devices):
    of.refresh_from_db()
    entries = [QuotaEntry(here.kind.name, devices)]
    teams.set_quota(team=of, entries=entries, actor=None, at=NOON, version=of.version)


def owns(at):
    return {one.name: one.entitlement.get(0, 0) for one in snapshot.take_snapshot(at).snapshot.teams}


def test_what_is_lent_counts_as_the_borrowers_for_its_time_and_never_more_than_there_is():
    here, lends, takes = fleet(2, 8), team("lends"), team("takes")
    own(lends, here, 10), own(takes, here, 2)
    lead = person(lends, role="lead")
    set_member(team_id=takes.pk, user=lead, role="lead", actor=None, at=NOON)
    loans.propose_loan(
        lender=lends,
        borrower=takes,
        accelerator_type=here.kind.name,
        n_devices=8,
        start_at=later(60),
        end_at=later(600),
        actor=lead,
        at=NOON,
    )

    assert owns(NOON) == {"lends": 10, "takes": 2}
    assert owns(later(60)) == owns(later(599)) == {"lends": 2, "takes": 10}
    assert owns(later(600)) == {"lends": 10, "takes": 2}
    # Less than it lent, by whatever way: what is there is moved, and nothing is made up.
    Quota.objects.filter(team=lends).update(entitlement=5)
    assert owns(later(60)) == {"lends": 0, "takes": 7}


def test_a_preview_leaves_loans_in_force_as_they_are():
    here, lends, takes = fleet(2, 8), team("lends"), team("takes")
    own(lends, here, 10), own(takes, here, 2)
    lead = person(lends, role="lead")
    set_member(team_id=takes.pk, user=lead, role="lead", actor=None, at=NOON)
    said = {"accelerator_type": here.kind.name, "n_devices": 4, "start_at": NOON, "end_at": later(600)}
    loans.propose_loan(lender=lends, borrower=takes, actor=lead, at=NOON, **said)
    told = quota_effects.with_quotas(
        snapshot.take_snapshot(later(1)), {lends.pk: (12, 3, None)}, here.kind.pk
    )

    assert {one.name: one.entitlement[0] for one in told.teams} == {"lends": 8, "takes": 6}


def test_the_next_pass_is_due_when_a_loan_begins_and_when_it_ends():
    here, lends, takes = fleet(1, 8), team("lends"), team("takes")
    own(lends, here, 8), own(takes, here, 0)
    lead = person(lends, role="lead")
    set_member(team_id=takes.pk, user=lead, role="lead", actor=None, at=NOON)
    loans.propose_loan(
        lender=lends,
        borrower=takes,
        accelerator_type=here.kind.name,
        n_devices=8,
        start_at=later(20),
        end_at=later(40),
        actor=lead,
        at=NOON,
    )
    due = []
    for seconds in (1, 20):
        found = services.run_pass(at=later(seconds))
        assert found is not None
        due.append(found.next_boundary_at)
    assert due == [later(20), later(40)]


# What a change would do -------------------------------------------------------------------------------------------


def world():
    """Eight devices; `ours` runs on six of them and owns four, `theirs` waits for four and owns four."""
    here = fleet(1, 8)
    ours, theirs = team("ours"), team("theirs")
    own(ours, here, 4), own(theirs, here, 4)
    running = job(ours, person(ours), devices=6, time_limit=86_400.0, preemptible=False)
    start(running, here, grant(here.nodes[0], tuple(range(6))))
    Quota.objects.filter(team=theirs).update(borrow_limit=0)
    waiting = job(theirs, person(theirs), devices=2, time_limit=600.0)
    return here, ours, theirs, running, waiting


def test_a_change_that_lets_a_job_start_names_it_and_writes_nothing():
    here, ours, theirs, _, waiting = world()
    Quota.objects.filter(team=theirs).update(entitlement=1)
    before = list(Quota.objects.order_by("pk").values())
    found = quota_effects.effects_of(
        {ours.pk: (5, None, None), theirs.pk: (3, 0, None)}, type_id=here.kind.pk, at=later(1)
    )

    assert [(one.job_id, one.devices) for one in found.starts] == [(waiting.pk, 2.0)]
    assert (found.stays, found.ends) == ((), ())
    assert found.borrowed == {ours.pk: -1.0}  # six held: two above four before, one above five now
    assert list(Quota.objects.order_by("pk").values()) == before
    assert not Allocation.objects.filter(job=waiting).exists()


def test_a_change_that_takes_says_who_has_to_wait_and_what_becomes_borrowed():
    here, ours, theirs, _, waiting = world()
    found = quota_effects.effects_of(
        {ours.pk: (1, None, None), theirs.pk: (1, 0, None)}, type_id=here.kind.pk, at=later(1)
    )

    assert [one.job_id for one in found.stays] == [waiting.pk]
    assert (found.starts, found.borrowed) == ((), {ours.pk: 3.0})


def test_what_would_be_with_other_quotas_is_what_is_after_they_are_saved():
    at = clock.now()
    inventory.create_accelerator_type(name="H100", tdp_w=700, actor=None, at=at)
    above = teams.create_team(name="above", actor=None, at=at)
    subs = [teams.create_team(name=name, parent=above, actor=None, at=at) for name in ("a", "b")]
    for one, devices in ((above, 40), (subs[0], 24), (subs[1], 8)):
        teams.set_quota(team=one, entries=[QuotaEntry("H100", devices)], actor=None, at=at, version=1)
    taken = snapshot.take_snapshot(at)
    (kind,) = taken.snapshot.facility.kinds
    wanted = {above.pk: (44, None, 3), subs[0].pk: (20, 5, None)}
    told = quota_effects.with_quotas(taken, wanted, kind.id)
    for one, entry in ((above, QuotaEntry("H100", 44, None, 3)), (subs[0], QuotaEntry("H100", 20, 5))):
        teams.set_quota(team=one, entries=[entry], actor=None, at=at, version=2)

    assert told.teams == snapshot.take_snapshot(at).snapshot.teams
