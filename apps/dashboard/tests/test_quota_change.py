"""Quotas in the browser: what a change would do is shown before it is saved, and loans are agreed by both sides."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.core import clock
from apps.dashboard.tests.facility import Facility, signed_in
from apps.teams import loans
from apps.teams import services as teams
from apps.teams.models import LoanState, Quota, QuotaLoan, Team
from apps.teams.services import QuotaEntry

KIND = "H100"


def give(team: Team, devices: int) -> None:
    team.refresh_from_db()
    entries = [QuotaEntry(KIND, devices)]
    teams.set_quota(team=team, entries=entries, actor=None, at=clock.now(), version=team.version)


@pytest.fixture
def divided(facility: Facility) -> tuple[Team, Team]:
    """Two sub-teams of the lead's team, of 16 and 8 devices; 8 are kept back."""
    vision = facility.vision
    give(vision, 64)
    made = []
    for sub in Team.objects.filter(parent=vision):
        give(sub, 0)
    for name, devices in (("one", 16), ("two", 8)):
        team = teams.create_team(name=f"{vision.name} {name}", parent=vision, actor=None, at=clock.now())
        give(team, devices)
        made.append(team)
    return made[0], made[1]


def fields(*changes: tuple[Team, dict[str, str]], **more: str) -> dict[str, str]:
    said = {"kind": KIND, **more}
    for team, values in changes:
        team.refresh_from_db()
        said[f"version-{team.pk}"] = str(team.version)
        said |= {f"{part}-{team.pk}": value for part, value in values.items()}
    return said


def test_a_preview_says_what_would_be_and_saves_nothing(
    facility: Facility, divided: tuple[Team, Team]
) -> None:
    client, (one, two) = signed_in(facility.lead), divided
    page = f"/quotas/{facility.vision.name}/"
    body = fields((one, {"entitlement": "8"}), (two, {"entitlement": "16"}), action="preview")
    answer = client.post(page, body)
    part = client.post(f"/quotas/parts/effects/{facility.vision.name}/", body)

    assert (answer.status_code, part.status_code) == (200, 200)
    assert "Sub-teams 24 + 40 kept back = 64" in part.content.decode()
    assert part.content.decode() in answer.content.decode()
    assert Quota.objects.get(team=one).entitlement == 16
    assert answer.context["table"].n_changed == 2


def test_sixteen_devices_move_from_one_project_to_another(
    facility: Facility, divided: tuple[Team, Team]
) -> None:
    client, (one, two) = signed_in(facility.lead), divided
    body = fields(
        (one, {"entitlement": "0"}),
        (two, {"entitlement": "24", "weight": "2.5"}),
        action="save",
        reason="now",
    )
    assert client.post(f"/quotas/{facility.vision.name}/", body).status_code == 302

    assert [Quota.objects.get(team=team).entitlement for team in (one, two)] == [0, 24]
    two.refresh_from_db()
    assert two.weight == 2.5


@pytest.mark.parametrize("typed", ["", "0", "-1", "nan", "inf", "1e400", "many", "1e9"])
def test_a_weight_that_is_none_is_refused_beside_its_field(
    facility: Facility, divided: tuple[Team, Team], typed: str
) -> None:
    one, _ = divided
    answer = signed_in(facility.lead).post(
        f"/quotas/{facility.vision.name}/",
        fields((one, {"weight": typed, "entitlement": "9"}), action="save"),
    )
    assert answer.status_code == 400
    assert f"error-weight-{one.pk}" in answer.content.decode()
    one.refresh_from_db()
    assert (one.weight, Quota.objects.get(team=one).entitlement) == (1.0, 16)


def test_too_much_is_said_while_it_is_typed(facility: Facility, divided: tuple[Team, Team]) -> None:
    one, _ = divided
    body = fields((one, {"entitlement": "60"}))
    text = (
        signed_in(facility.lead).post(f"/quotas/parts/effects/{facility.vision.name}/", body).content.decode()
    )
    assert "Sub-teams would be entitled to 68; the team owns 64." in text


def test_who_may_not_change_a_quota_sees_no_preview(facility: Facility, divided: tuple[Team, Team]) -> None:
    one, _ = divided
    body = fields((one, {"entitlement": "8"}))
    for who in (facility.viewer, facility.member, facility.stranger):
        assert signed_in(who).post(f"/quotas/parts/effects/{facility.vision.name}/", body).status_code == 403


def test_a_loan_is_offered_agreed_and_given_back(facility: Facility, divided: tuple[Team, Team]) -> None:
    other = Team.objects.filter(parent=None).exclude(pk=facility.vision.pk).first() or teams.create_team(
        name="other", parent=None, actor=None, at=clock.now()
    )
    teams.set_member(team_id=other.pk, user=facility.stranger, role="lead", actor=None, at=clock.now())
    friday = timezone.localtime(clock.now() + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M")
    said = {"direction": "lend", "other": other.name, "kind": KIND, "n_devices": "8", "end": friday}
    client = signed_in(facility.lead)
    assert client.post(f"/quotas/loans/new/{facility.vision.name}/", said).status_code == 302
    loan = QuotaLoan.objects.get()
    assert (loan.state, loan.n_devices, loan.lender) == (LoanState.PROPOSED, 8, facility.vision)
    assert "Take back" in client.get(f"/quotas/{facility.vision.name}/").content.decode()

    theirs = signed_in(facility.stranger)
    page = theirs.get(f"/quotas/{other.name}/").content.decode()
    assert "Agree" in page
    assert "Waits for an answer" in page
    assert theirs.post(f"/quotas/loans/{loan.pk}/", {"wish": "accept", "team": other.name}).status_code == 302
    loan.refresh_from_db()
    assert loan.state == LoanState.AGREED
    assert loans.shifts(clock.now())[other.pk, loan.accelerator_type_id] == 8
    assert "Give back" in theirs.get(f"/quotas/{other.name}/").content.decode()
    theirs.post(f"/quotas/loans/{loan.pk}/", {"wish": "end", "team": other.name})
    assert loans.shifts(clock.now()) == {}


@pytest.mark.parametrize(
    "wrong", [{"n_devices": "-1"}, {"end": "soon"}, {"other": "nobody"}, {"n_devices": "900"}]
)
def test_a_loan_that_cannot_be_is_answered_in_words(
    facility: Facility, divided: tuple[Team, Team], wrong: dict[str, str]
) -> None:
    friday = timezone.localtime(clock.now() + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M")
    other = Team.objects.exclude(pk=facility.vision.pk).order_by("pk").first()
    assert other is not None
    said = {"direction": "lend", "other": other.name, "kind": KIND, "n_devices": "8", "end": friday, **wrong}
    answer = signed_in(facility.lead).post(f"/quotas/loans/new/{facility.vision.name}/", said, follow=True)

    assert answer.status_code == 200
    assert not QuotaLoan.objects.exists()
    assert [str(message.level_tag) for message in answer.context["messages"]] == ["error"]


def test_a_stranger_proposes_nothing(facility: Facility) -> None:
    said = {"direction": "lend", "other": facility.vision.name, "kind": KIND, "n_devices": "8"}
    said["end"] = timezone.localtime(clock.now() + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M")
    own = facility.pretraining.name
    assert signed_in(facility.viewer).post(f"/quotas/loans/new/{own}/", said).status_code == 403
