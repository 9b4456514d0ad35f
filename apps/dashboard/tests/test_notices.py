"""Notices on the pages: the bell, the list, what somebody chooses, and that nobody sees another's."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.dashboard.tests.curtailed import add_work
from apps.dashboard.tests.facility import Facility, signed_in
from apps.events.models import Event
from apps.notices import services
from apps.notices.kinds import Kind
from apps.notices.models import Channel, Notice, Preference
from apps.notices.sending import Message
from apps.notices.webhook import WebhookFailed
from apps.notices.writing import Draft, write
from apps.power.response_services import EventDraft, announce_event
from apps.scheduling.response import services as response
from apps.scheduling.response.deciding import Wish
from apps.teams.models import User

SETTINGS = "/me/notices/settings/"
PACES = {"pace_email": "300", "pace_webhook": "300"}
HOOK = "https://hooks.example/services/very-secret"


def tell(person: User, key: str = "train", title: str = "", kind: Kind = Kind.JOB_FAILED) -> Notice:
    at = clock.now()
    draft = Draft(
        user_id=person.pk, kind=kind, key=key, title=title or f"{key} has failed", path="/queue/", at=at
    )
    return write([draft], at=at)[0]


def test_the_bell_counts_what_is_unread_and_nothing_of_others(facility: Facility) -> None:
    tell(facility.member)
    tell(facility.stranger, "theirs")
    client = signed_in(facility.member)

    assert 'aria-label="Notices, 1 unread"' in client.get("/").content.decode()
    text = client.get("/me/notices/").content.decode()
    assert "train has failed" in text
    assert "theirs" not in text
    client.post("/me/notices/read/")
    assert 'aria-label="Notices"' in client.get("/me/notices/parts/bell/").content.decode()
    assert Notice.objects.filter(user=facility.stranger, read_at=None).exists()


def test_a_notice_that_is_opened_is_read_and_leads_to_its_page(facility: Facility) -> None:
    mine, theirs = tell(facility.member), tell(facility.stranger, "theirs")
    client = signed_in(facility.member)
    assert client.post("/me/notices/read/", {"id": mine.pk}).url == "/queue/"
    assert client.post("/me/notices/read/", {"id": theirs.pk}).url == "/me/notices/"
    assert client.post("/me/notices/read/", {"id": "nonsense"}).url == "/me/notices/"

    mine.refresh_from_db()
    theirs.refresh_from_db()
    assert mine.read_at is not None
    assert theirs.read_at is None


def test_titles_are_text(facility: Facility) -> None:
    tell(facility.member, title="<script>alert(1)</script>' & \u05e9\u05dc\u05d5\u05dd" + "x" * 150)
    text = signed_in(facility.member).get("/me/notices/").content.decode()

    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;" in text


def test_choices_are_kept_and_the_address_is_shown_to_nobody(facility: Facility) -> None:
    client = signed_in(facility.member)
    choice = {**PACES, "shown": ["job_failed"], "webhook": ["job_failed"], "webhook_url": HOOK}
    assert client.post(SETTINGS, choice).status_code == 302
    text = client.get(SETTINGS).content.decode()

    assert Preference.objects.get(user=facility.member).kinds == ["job_failed"]
    assert "hooks.example" in text
    assert "very-secret" not in text
    trail = signed_in(facility.admin).get("/audit/?kind=user.").content.decode()
    assert "user.notices_chosen" in trail
    assert "very-secret" not in trail
    assert "user.notices_chosen" not in signed_in(facility.viewer).get("/audit/?kind=user.").content.decode()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"webhook": ["job_failed"], "webhook_url": "https://169.254.169.254/x"},
            "leads to a private address",
        ),
        ({"webhook": ["job_failed"], "webhook_url": "http://hooks.example/x"}, "must begin with https://"),
        ({"webhook": ["job_failed"]}, "is needed for what you ticked"),
        ({"shown": ["no_such_kind"]}, "names a kind that is not there"),
    ],
)
def test_what_cannot_be_meant_is_said_beside_its_field_and_changes_nothing(
    facility: Facility, more: dict[str, object], said: str
) -> None:
    answer = signed_in(facility.member).post(SETTINGS, {**PACES, **more})

    assert answer.status_code == 400
    assert said in answer.content.decode()
    assert not Channel.objects.exists()
    assert not Preference.objects.exists()
    assert not Event.objects.filter(kind="user.notices_chosen").exists()


def test_a_pace_that_is_not_offered_is_refused(facility: Facility) -> None:
    answer = signed_in(facility.member).post(SETTINGS, {**PACES, "pace_email": "1"})

    assert answer.status_code == 400


def test_a_test_message_says_whether_it_arrived(facility: Facility, monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(facility.member)
    client.post(SETTINGS, {**PACES, "webhook": ["job_failed"], "webhook_url": HOOK})

    def fails(channel: Channel, message: Message) -> None:
        raise WebhookFailed("hooks.example answered 404.", permanent=True)

    monkeypatch.setattr(services.sending, "carry_out", fails)
    answer = client.post("/me/notices/test/", {"way": "webhook"}, follow=True)
    assert "hooks.example answered 404." in answer.content.decode()
    monkeypatch.setattr(services.sending, "carry_out", lambda channel, message: None)
    answer = client.post("/me/notices/test/", {"way": "webhook"}, follow=True)
    assert "A test was sent" in answer.content.decode()
    assert client.post("/me/notices/test/", {"way": "email"}).status_code == 404


def test_a_channel_that_was_switched_off_says_why(facility: Facility) -> None:
    reason = "After 3 tries in a row: hooks.example answered 404."
    Channel.objects.create(
        user=facility.member,
        way="webhook",
        sealed_url="x",
        host="hooks.example",
        is_on=False,
        off_reason=reason,
    )

    assert reason in signed_in(facility.member).get(SETTINGS).content.decode()


def test_no_page_of_notices_is_for_who_is_not_signed_in(client) -> None:
    for path in ("/me/notices/", SETTINGS, "/me/notices/parts/bell/"):
        assert client.get(path).status_code == 302


def test_more_notices_cost_no_more_queries(facility: Facility, django_assert_max_num_queries) -> None:
    for number in range(60):
        tell(facility.member, f"j{number}")
    client = signed_in(facility.member)
    client.get("/me/notices/")
    with django_assert_max_num_queries(12):
        text = client.get("/me/notices/").content.decode()

    assert text.count('id="notice-') == 50
    assert 'rel="next"' in text


def test_a_job_says_what_comes_before_it_comes(facility: Facility) -> None:
    at = clock.now()
    work = add_work(facility, at=at)
    draft = EventDraft(
        domain="Hall A",
        target_kind="shed_by",
        value=4000.0,
        start_at=at + timedelta(minutes=30),
        end_at=at + timedelta(minutes=90),
        ramp_start_at=at + timedelta(minutes=25),
        reason="the grid asks",
    )
    event = announce_event(draft=draft, actor=facility.operator, at=at)
    plan = response.preview(event_id=event.pk, wish=Wish(), actor=facility.operator, at=at)
    response.commit(event_id=event.pk, inputs_hash=plan.inputs_hash, actor=facility.operator, at=at)
    touched = {one["job_id"] for one in plan.plan["actions"]}
    client = signed_in(facility.stranger)
    pages = {name: client.get(f"/jobs/{job.pk}/").content.decode() for name, job in work.items()}

    said = {work[name].pk for name, text in pages.items() if 'id="grid-coming"' in text}
    assert said == touched != set()
    assert all("the grid asks" in pages[name] for name in work if work[name].pk in touched)
