"""Views of the queue that have a name: a person's own, and those that a team shares."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dashboard import saved_views
from apps.dashboard.models import SavedView
from apps.dashboard.tests.facility import Facility, signed_in
from apps.teams.models import User
from apps.teams.tests.builders import client

QUERY = "after=xyz&state=running&mine=&team=Vision"
KEPT = "state=running&team=Vision"


def keep(user: User, name: str = "big ones", **fields: str):
    return signed_in(user).post("/queue/views/", {"name": name, "query": QUERY, **fields})


def names_seen_by(user: User) -> list[str]:
    return [view.name for view in signed_in(user).get("/queue/").context["views"]]


def test_a_view_is_kept_and_leads_back_to_its_filters(facility: Facility) -> None:
    answer = keep(facility.member)
    page = signed_in(facility.member).get(f"/queue/?{KEPT}&after=abc")

    assert answer["Location"] == f"/queue/?{KEPT}"
    assert SavedView.objects.get().query == KEPT
    assert page.context["shown_view"].name == "big ones"
    assert 'href="/queue/?state=running&amp;team=Vision" aria-current="true"' in page.content.decode()


def test_nobody_else_sees_a_view_that_is_not_shared(facility: Facility) -> None:
    keep(facility.member)

    assert names_seen_by(facility.member) == ["big ones"]
    for other in (facility.lead, facility.admin, facility.stranger):
        assert names_seen_by(other) == []


def test_a_team_shares_a_view_and_others_do_not_see_it(facility: Facility) -> None:
    keep(facility.member, team="pretraining")

    assert names_seen_by(facility.lead) == ["big ones"]  # who leads the team above acts for it too
    assert names_seen_by(facility.stranger) == []


def test_a_view_is_shared_with_ones_own_teams_alone(facility: Facility) -> None:
    keep(facility.member, team="Speech")

    assert not SavedView.objects.exists()


def test_the_same_name_again_replaces_what_was_kept(facility: Facility) -> None:
    keep(facility.member)
    keep(facility.member, query="state=held")
    keep(facility.stranger)

    mine = SavedView.objects.get(owner=facility.member)
    assert (mine.query, SavedView.objects.count()) == ("state=held", 2)


@pytest.mark.parametrize(
    "fields", [{"name": ""}, {"name": "a\u202eb"}, {"query": "after=x"}, {"query": "size=huge"}]
)
def test_what_is_no_view_is_not_kept(facility: Facility, fields: dict[str, str]) -> None:
    keep(facility.member, **fields)

    assert not SavedView.objects.exists()


def test_only_the_owner_deletes_a_view(facility: Facility) -> None:
    keep(facility.member, team="pretraining")
    path = f"/queue/views/{SavedView.objects.get().pk}/delete/"

    assert signed_in(facility.lead).post(path).status_code == 404
    assert SavedView.objects.exists()
    assert signed_in(facility.member).post(path).status_code == 302
    assert not SavedView.objects.exists()


def test_there_is_a_bound(facility: Facility, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MOST", 1)
    keep(facility.member)
    keep(facility.member, "another")
    keep(facility.member, query="state=held")

    assert SavedView.objects.get().query == "state=held"


def test_more_views_do_not_cost_queries(facility: Facility) -> None:
    door = signed_in(facility.member)

    def n_queries() -> int:
        door.get("/queue/")
        with CaptureQueriesContext(connection) as queries:
            door.get("/queue/")
        return len(queries)

    keep(facility.member)
    few = n_queries()
    for number in range(10):
        saved_views.save(
            name=f"view {number}",
            query=KEPT,
            team=facility.pretraining,
            actor=facility.member,
            at=clock.now(),
        )
    assert n_queries() == few


def test_by_rest_views_are_kept_listed_and_forgotten(facility: Facility) -> None:
    door = client(facility.member)
    body = {"name": "big ones", "query": QUERY, "team": "pretraining"}

    made = door.post("/api/v1/saved-views", body, format="json")
    wrong = door.post("/api/v1/saved-views", {**body, "query": "size=huge"}, format="json")
    theirs = client(facility.lead).get("/api/v1/saved-views").data["items"]

    assert (made.status_code, made.data["query"]) == (201, KEPT)
    assert (wrong.status_code, wrong.data["errors"][0]["path"]) == (400, "query")
    assert [(one["name"], one["owner"], one["team"]) for one in theirs] == [
        ("big ones", "max", "pretraining")
    ]
    path = f"/api/v1/saved-views/{made.data['id']}"
    assert client(facility.lead).delete(path).status_code == 404
    assert door.delete(path).status_code == 204
    assert client(facility.stranger).get("/api/v1/saved-views").data["items"] == []
