"""Loans: devices that count as another team's for a while; agreed by both, over by time alone."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.events.models import Event
from apps.teams import loans, services
from apps.teams.errors import LoanIsAnswered, MoreThanKeptBack, NotYourTeam, TeamInUse
from apps.teams.models import LoanState, QuotaLoan, Team, User
from apps.teams.tests.builders import NOON, client, own, person, team

pytestmark = pytest.mark.django_db


def hours(n: float) -> datetime:
    return NOON + timedelta(hours=n)


class Scene:
    """Two teams side by side, each with its lead; the first has 16 devices and gave 6 to a sub-team."""

    def __init__(self) -> None:
        self.lender, self.borrower = team("lender", H100=16), team("borrower", H100=4)
        team("part", self.lender, H100=6)
        self.gives, self.takes = person("gives", leads=self.lender), person("takes", leads=self.borrower)

    def propose(self, actor: User | None = None, **more: Any) -> QuotaLoan:
        said = {
            "lender": self.lender,
            "borrower": self.borrower,
            "accelerator_type": "H100",
            "n_devices": 8,
            "start_at": NOON,
            "end_at": hours(24),
            **more,
        }
        return loans.propose_loan(actor=actor or self.gives, at=NOON, **said)

    def shifts(self, at: datetime) -> dict[str, int]:
        names = dict(Team.objects.values_list("pk", "name"))
        return {names[team_id]: n for (team_id, _), n in loans.shifts(at).items()}


def test_an_offer_counts_once_the_other_side_agrees_and_from_start_to_end():
    scene = Scene()
    loan = scene.propose(start_at=hours(1))
    assert (loan.state, scene.shifts(hours(2))) == (LoanState.PROPOSED, {})
    loans.answer_loan(loan_id=loan.pk, accept=True, actor=scene.takes, at=NOON)

    assert scene.shifts(NOON) == {}
    assert scene.shifts(hours(1)) == scene.shifts(hours(23.9)) == {"lender": -8, "borrower": 8}
    assert scene.shifts(hours(24)) == {}
    assert [loans.next_change_at(hours(n)) for n in (0, 1, 24)] == [hours(1), hours(24), None]
    kinds = list(
        Event.objects.filter(kind__startswith="quota.loan").order_by("id").values_list("kind", "subject_name")
    )
    assert kinds == [
        ("quota.loan_proposed", "lender"),
        ("quota.loan_proposed", "borrower"),
        ("quota.loan_agreed", "lender"),
        ("quota.loan_agreed", "borrower"),
    ]


def test_who_borrows_may_ask_and_who_leads_both_agrees_with_themselves():
    scene = Scene()
    asked = scene.propose(scene.takes)
    assert asked.is_asked
    with pytest.raises(NotYourTeam):
        loans.answer_loan(loan_id=asked.pk, accept=True, actor=scene.takes, at=NOON)
    loans.answer_loan(loan_id=asked.pk, accept=True, actor=scene.gives, at=NOON)
    part = Team.objects.get(name="part")
    assert scene.propose(borrower=part, n_devices=2).state == LoanState.AGREED


def test_no_more_is_lent_than_a_team_has_for_itself():
    scene = Scene()
    with pytest.raises(MoreThanKeptBack) as refusal:
        scene.propose(n_devices=11)
    assert refusal.value.facts["free"] == 10
    first, second = scene.propose(n_devices=6), scene.propose(n_devices=6)
    loans.answer_loan(loan_id=first.pk, accept=True, actor=scene.takes, at=NOON)
    with pytest.raises(MoreThanKeptBack):
        loans.answer_loan(loan_id=second.pk, accept=True, actor=scene.takes, at=NOON)
    after = scene.propose(n_devices=10, start_at=hours(24), end_at=hours(30))  # begins when the first ends
    loans.answer_loan(loan_id=after.pk, accept=True, actor=scene.takes, at=NOON)
    assert scene.shifts(hours(24)) == {"lender": -10, "borrower": 10}


def test_only_the_other_side_answers_and_once():
    scene, stranger = Scene(), person("stranger")
    loan = scene.propose()
    for actor, accept in ((stranger, True), (stranger, False), (scene.gives, True)):
        with pytest.raises(NotYourTeam):
            loans.answer_loan(loan_id=loan.pk, accept=accept, actor=actor, at=NOON)
    loans.answer_loan(loan_id=loan.pk, accept=False, actor=scene.gives, at=NOON)
    loan.refresh_from_db()
    assert loan.state == LoanState.WITHDRAWN
    with pytest.raises(LoanIsAnswered):
        loans.answer_loan(loan_id=loan.pk, accept=True, actor=scene.takes, at=NOON)
    late = scene.propose()
    with pytest.raises(LoanIsAnswered):
        loans.answer_loan(loan_id=late.pk, accept=True, actor=scene.takes, at=hours(24))
    declined = loans.answer_loan(loan_id=late.pk, accept=False, actor=scene.takes, at=hours(25))
    assert declined.state == LoanState.DECLINED


def test_it_is_given_back_at_once_and_recalled_with_notice():
    scene = Scene()
    first, second = scene.propose(n_devices=5, notice_s=7200.0), scene.propose(n_devices=5, notice_s=7200.0)
    for loan in (first, second):
        loans.answer_loan(loan_id=loan.pk, accept=True, actor=scene.takes, at=NOON)
    loans.end_loan(loan_id=first.pk, actor=scene.takes, at=hours(1))
    loans.end_loan(loan_id=second.pk, actor=scene.gives, at=hours(1))
    assert scene.shifts(hours(1)) == scene.shifts(hours(2.9)) == {"lender": -5, "borrower": 5}
    assert scene.shifts(hours(3)) == {}
    with pytest.raises(LoanIsAnswered):
        loans.end_loan(loan_id=second.pk, actor=scene.gives, at=hours(2))  # the notice is running
    with pytest.raises(NotYourTeam):
        loans.end_loan(loan_id=second.pk, actor=person("stranger"), at=hours(2))


def test_a_loan_that_has_not_begun_never_does_when_it_is_ended():
    scene = Scene()
    loan = scene.propose(start_at=hours(5), notice_s=7200.0)
    loans.answer_loan(loan_id=loan.pk, accept=True, actor=scene.takes, at=NOON)
    loans.end_loan(loan_id=loan.pk, actor=scene.gives, at=hours(1))
    assert scene.shifts(hours(5)) == {}


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("end_at", {"end_at": NOON}),
        ("end_at", {"end_at": hours(24 * 400)}),
        ("n_devices", {"n_devices": 0}),
        ("n_devices", {"n_devices": True}),
        ("accelerator_type", {"accelerator_type": "B900"}),
        ("notice_s", {"notice_s": float("nan")}),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_kept(field: str, more: dict[str, Any]):
    scene = Scene()
    with pytest.raises(InvalidInput) as refusal:
        scene.propose(**more)
    assert field in str(refusal.value.errors)
    assert not QuotaLoan.objects.exists()


def test_the_database_knows_what_a_loan_is():
    scene = Scene()
    loan = scene.propose()
    for wrong in ({"n_devices": 0}, {"borrower": scene.lender}, {"end_at": hours(-1)}, {"state": "agreed"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            QuotaLoan.objects.filter(pk=loan.pk).update(**wrong)


def test_a_loan_by_rest():
    scene = Scene()
    body = {"lender": "lender", "borrower": "borrower", "accelerator_type": "H100", "n_devices": 8}
    far = (datetime.now(NOON.tzinfo) + timedelta(days=2)).isoformat()
    assert client(scene.gives).post("/api/v1/loans", body, format="json").status_code == 400
    made = client(scene.gives).post("/api/v1/loans", {**body, "end_at": far}, format="json")
    assert made.status_code == 201, made.json()
    address = f"/api/v1/loans/{made.json()['id']}"
    assert (
        client(person("else")).post(f"{address}/answer", {"accept": True}, format="json").status_code == 403
    )
    agreed = client(scene.takes).post(f"{address}/answer", {"accept": True}, format="json").json()
    assert (agreed["state"], agreed["n_devices"]) == ("agreed", 8)
    listed = client(scene.takes).get("/api/v1/teams/borrower/loans").json()["items"]
    assert [row["id"] for row in listed] == [agreed["id"]]
    ended = client(scene.takes).post(f"{address}/end", {}, format="json").json()
    assert ended["end_at"] < far
    assert client(scene.takes).get("/api/v1/loans/999999").status_code == 404


def test_a_lead_who_reads_an_old_version_is_told_of_the_loan():
    scene = Scene()
    version = Team.objects.get(name="lender").version
    loans.answer_loan(loan_id=scene.propose().pk, accept=True, actor=scene.takes, at=NOON)
    assert own(scene.lender, H100=17).version > version + 1


def test_what_is_lent_cannot_be_given_to_sub_teams_or_taken_from_the_lender_meanwhile():
    scene = Scene()
    loans.answer_loan(loan_id=scene.propose(n_devices=8).pk, accept=True, actor=scene.takes, at=NOON)
    part = Team.objects.get(name="part")
    own(part, H100=8)  # ten were kept back, eight of them are lent
    with pytest.raises(MoreThanKeptBack):
        own(part, H100=9)
    with pytest.raises(MoreThanKeptBack):
        own(scene.lender, H100=15)


@pytest.mark.parametrize(("gives_back", "ends", "event"), [(None, 4, "recalled"), (True, 1, "given_back")])
def test_who_leads_both_recalls_with_notice_unless_they_say_that_they_give_back(
    gives_back: bool | None, ends: int, event: str
):
    scene = Scene()
    both = person("both", "admin")
    loan = scene.propose(both, notice_s=3 * 3600.0)

    loans.end_loan(loan_id=loan.pk, actor=both, at=hours(1), gives_back=gives_back)

    loan.refresh_from_db()
    assert loan.end_at == hours(ends)
    assert Event.objects.filter(kind=f"quota.loan_{event}").count() == 2


@pytest.mark.parametrize(("who", "gives_back"), [("gives", True), ("takes", False)])
def test_nobody_ends_a_loan_in_the_name_of_the_other_side(who: str, gives_back: bool):
    scene = Scene()
    loan = scene.propose()
    loans.answer_loan(loan_id=loan.pk, accept=True, actor=scene.takes, at=NOON)

    with pytest.raises(NotYourTeam):
        loans.end_loan(loan_id=loan.pk, actor=getattr(scene, who), at=hours(1), gives_back=gives_back)


def test_by_rest_the_side_is_said():
    scene = Scene()
    both = person("both", "admin")
    loan = scene.propose(both, start_at=NOON, end_at=NOON + timedelta(days=300), notice_s=3600.0)

    path = f"/api/v1/loans/{loan.pk}/end"
    QuotaLoan.objects.filter(pk=loan.pk).update(end_at=clock.now() + timedelta(days=3))
    recalled = client(both).post(path, {"gives_back": False}, format="json").data
    given = client(both).post(path, {"gives_back": True}, format="json").data

    assert recalled["end_at"] > given["end_at"]


@pytest.mark.parametrize("side", ["lender", "borrower"])
def test_a_team_whose_loans_are_over_can_be_taken_away(side: str):
    scene = Scene()
    loan = scene.propose(end_at=hours(2))
    loans.answer_loan(loan_id=loan.pk, accept=True, actor=scene.takes, at=NOON)
    Team.objects.filter(name="part").delete()

    with pytest.raises(TeamInUse, match="loan"):
        services.delete_team(team_id=getattr(scene, side).pk, actor=None, at=hours(1))
    services.delete_team(team_id=getattr(scene, side).pk, actor=None, at=hours(3))

    assert not Team.objects.filter(name=side).exists()
    assert Event.objects.filter(kind="quota.loan_agreed").count() == 2  # the trail keeps what was lent


def test_all_open_loans_are_listed_before_the_latest_of_those_that_are_over():
    scene = Scene()
    open_loan = scene.propose(n_devices=1, end_at=hours(1000))
    over = [scene.propose(n_devices=1, end_at=hours(1)) for _ in range(30)]

    listed = loans.open_and_latest(scene.lender, at=hours(2), most_over=20)

    assert [loan.pk for loan in listed] == [open_loan.pk, *(loan.pk for loan in reversed(over[10:]))]
