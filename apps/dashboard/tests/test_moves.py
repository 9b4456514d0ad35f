"""The page of moves: what it shows to whom, and what becomes of a yes."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dashboard.tests.facility import signed_in
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.tests.builders import Fleet, fleet, grant, job, person, start, team
from apps.scheduling import advice, snapshot
from apps.scheduling.models import Defragmentation
from apps.teams.models import FacilityRole, MemberRole, Team, User

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_memory")]


@dataclass
class Scene:
    here: Fleet
    ours: Team
    me: User
    operator: User
    leaver: Job
    waits: Job
    at: datetime


@pytest.fixture
def scene() -> Scene:
    """Two nodes, half of each in use for some minutes; a job that waits for a whole one."""
    at = clock.now()
    here, ours = fleet(2, 4), team()
    me, operator = person(ours), person(facility_role=FacilityRole.OPERATOR)
    made = []
    for node, ran in ((0, 500), (1, 100)):
        since = at - timedelta(seconds=ran)
        one = job(ours, me, name=f"half-{node}", devices=2, time_limit=7200.0, at=since,
                  checkpoint={"interval": 3600.0, "cost": 5.0, "restart": 15.0})  # fmt: skip
        start(one, here, grant(here.nodes[node], (0, 1)), at=since)
        made.append(one)
    kinds = [here.kind.name]
    waits = job(ours, me, name="wants-a-node", devices=4, time_limit=600.0, accelerators=kinds, at=at)
    return Scene(here, ours, me, operator, made[1], waits, at)


def fingerprint(scene: Scene) -> str:
    (one,) = advice.proposals(viewer=scene.operator, at=clock.now())
    return one.fingerprint


def state_of(of: Job) -> str:
    return Job.objects.get(pk=of.pk).state


def test_an_operator_sees_who_moves_where_and_what_it_costs_and_wins(scene: Scene) -> None:
    text = signed_in(scene.operator).get("/moves/").content.decode()

    assert "wants-a-node" in text
    assert "half-1" in text
    assert "half-0" not in text
    # 2 devices x 120 s, and a second or so; 4 devices for nearly 1 h 52 min.
    assert "0.1<small>device hours" in text
    assert "7.4<small>device hours" in text
    assert all(node.name in text for node in scene.here.nodes)
    assert f'value="{fingerprint(scene)}"' in text


def test_nodes_lead_there_for_those_who_may_see_it(scene: Scene) -> None:
    assert 'href="/moves/"' in signed_in(scene.operator).get("/nodes/").content.decode()
    assert 'href="/moves/"' not in signed_in(scene.me).get("/nodes/").content.decode()


def test_without_a_proposal_the_page_says_so(scene: Scene) -> None:
    Job.objects.filter(pk=scene.waits.pk).update(is_held=True)

    assert "Nothing to move" in signed_in(scene.operator).get("/moves/").content.decode()


def test_a_yes_is_carried_out_and_shown_among_what_was_moved(scene: Scene) -> None:
    client = signed_in(scene.operator)
    answer = client.post("/moves/move/", {"fingerprint": fingerprint(scene)}, follow=True)

    assert answer.redirect_chain == [("/moves/", 302)]
    assert "were asked to move" in answer.content.decode()
    assert "Moved before" in answer.content.decode()
    assert "Nothing to move" in answer.content.decode()
    assert state_of(scene.leaver) == State.PREEMPTING


def test_an_old_proposal_is_refused_in_words_and_moves_nobody(scene: Scene) -> None:
    old = fingerprint(scene)
    Job.objects.filter(pk=scene.waits.pk).update(is_held=True)
    answer = signed_in(scene.operator).post("/moves/move/", {"fingerprint": old}, follow=True)

    assert "no longer holds" in answer.content.decode()
    assert state_of(scene.leaver) == State.RUNNING


def test_only_operators_see_the_button_and_only_their_yes_counts(scene: Scene) -> None:
    proposal = fingerprint(scene)
    auditor = signed_in(person(facility_role=FacilityRole.AUDITOR))
    assert "dialog-" not in auditor.get("/moves/").content.decode()
    assert "wants-a-node" in auditor.get("/moves/").content.decode()
    strangers = [signed_in(user) for user in (scene.me, person(scene.ours, role=MemberRole.LEAD), person())]
    assert [client.get("/moves/").status_code for client in strangers] == [403, 403, 403]

    answers = [client.post("/moves/move/", {"fingerprint": proposal}) for client in (auditor, *strangers)]
    assert [answer.status_code for answer in answers] == [403] * 4
    assert Client().post("/moves/move/", {"fingerprint": proposal}).status_code == 302  # to sign in
    assert signed_in(scene.operator).get("/moves/move/").status_code == 405
    assert state_of(scene.leaver) == State.RUNNING
    assert not Defragmentation.objects.exists()


def test_a_yes_needs_the_token_of_its_form(scene: Scene) -> None:
    client = signed_in(scene.operator, enforce_csrf_checks=True)

    assert client.post("/moves/move/", {"fingerprint": fingerprint(scene)}).status_code == 403
    assert state_of(scene.leaver) == State.RUNNING


def test_proposals_do_not_cost_queries(scene: Scene) -> None:
    client = signed_in(scene.operator)
    client.get("/moves/")
    snapshot.forget()
    with CaptureQueriesContext(connection) as one:
        client.get("/moves/")
    for node, ran in ((0, 400), (1, 300)):  # another pair of halves, of another type
        if node == 0:
            there = fleet(2, 8)
        since = scene.at - timedelta(seconds=ran)
        other = job(scene.ours, scene.me, devices=3, time_limit=7200.0, at=since,
                    checkpoint={"interval": 3600.0})  # fmt: skip
        start(other, there, grant(there.nodes[node], (0, 1, 2)), at=since)
    job(scene.ours, scene.me, devices=8, time_limit=600.0, accelerators=[there.kind.name], at=scene.at)
    snapshot.forget()
    with CaptureQueriesContext(connection) as two:
        text = client.get("/moves/").content.decode()

    assert text.count(" can start</h2>") == 2
    assert len(two) <= len(one) + 1  # a shape more is read once
