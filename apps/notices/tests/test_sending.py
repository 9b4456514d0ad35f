"""One message for whatever gathered, tried again, given up in the end, and never lost by a kill."""

from datetime import timedelta

import pytest
from django.core import mail

from apps.core.errors import InvalidInput
from apps.events.models import Event
from apps.jobs.tests.builders import NOON, later, person
from apps.notices import sending, services
from apps.notices.kinds import CHOSEN, Kind
from apps.notices.models import Channel, Delivery, DeliveryState, Notice
from apps.notices.sending import escaped, send_due
from apps.notices.services import Choice, Choices, DidNotArrive, TooManyTests, choose, mark_read, send_test
from apps.notices.webhook import WebhookFailed
from apps.notices.writing import Draft, write

pytestmark = pytest.mark.django_db
HOOK = "https://hooks.example/services/T0/B0/very-secret"
ALL = frozenset(kind.value for kind in CHOSEN)


@pytest.fixture(autouse=True)
def mail_server(settings) -> None:
    settings.EMAIL_HOST = "mail.example"


@pytest.fixture
def me():
    made = person()
    type(made).objects.filter(pk=made.pk).update(email="me@example.com")
    made.refresh_from_db()
    return made


def tell(user, *keys: str, at=NOON) -> None:
    write(
        [
            Draft(
                user_id=user.pk,
                kind=Kind.JOB_FAILED,
                key=key,
                title=f"{key} has failed",
                path="/jobs/1/",
                at=at,
            )
            for key in keys
        ],
        at=at,
    )


def by_mail(user, **more) -> Channel:
    return Channel.objects.create(user=user, way="email", kinds=[Kind.JOB_FAILED], **more)


class Carrier:
    def __init__(self, *faults: Exception | None) -> None:
        self.faults, self.carried = list(faults), []

    def __call__(self, channel: Channel, message: sending.Message) -> None:
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        self.carried.append(message)


def test_one_notice_is_a_mail_of_its_own(me, settings):
    settings.SWITCHYARD_URL = "https://switchyard.example"
    by_mail(me)
    tell(me, "train")
    assert send_due(at=later(1)) == 1
    assert send_due(at=later(600)) == 0

    (sent,) = mail.outbox
    assert (sent.to, sent.subject) == (["me@example.com"], "[Switchyard] train has failed")
    assert "https://switchyard.example/jobs/1/" in sent.body
    assert Delivery.objects.get().state == DeliveryState.SENT


def test_five_hundred_things_are_one_mail(me):
    by_mail(me)
    tell(me, *(f"job-{i}" for i in range(500)))
    send_due(at=later(1))

    (sent,) = mail.outbox
    assert sent.subject == "[Switchyard] 500 notices"
    assert "and 470 more" in sent.body
    assert not Delivery.objects.filter(state=DeliveryState.WAITING).exists()


def test_what_happens_soon_after_a_mail_waits_for_the_next(me):
    by_mail(me, pace_s=3600)
    tell(me, "first")
    send_due(at=later(1))
    tell(me, "second", "third", at=later(60))
    assert send_due(at=later(3600)) == 0
    assert send_due(at=later(3601)) == 1

    assert [one.subject for one in mail.outbox] == ["[Switchyard] first has failed", "[Switchyard] 2 notices"]


def test_the_same_thing_is_told_once(me):
    by_mail(me)
    tell(me, "train")
    tell(me, "train", at=later(5))

    assert Notice.objects.count() == Delivery.objects.count() == 1


def test_a_kind_that_is_not_ticked_is_not_sent(me):
    Channel.objects.create(user=me, way="email", kinds=[Kind.JOB_STARTED])
    tell(me, "train")

    assert not Delivery.objects.exists()
    assert Notice.objects.filter(is_shown=True).count() == 1


def test_a_failure_is_tried_again_later_and_later(me):
    channel = by_mail(me)
    tell(me, "train")
    carry = Carrier(*[WebhookFailed("busy")] * 3)
    for seconds in (0, 1, 30, 31, 90, 91, 211, 212):
        send_due(at=later(seconds), carry=carry)

    # Tries at 0, 30, 90 and 210 seconds or just after.
    assert len(carry.carried) == 1
    channel.refresh_from_db()
    assert (channel.n_failures, channel.retry_at, channel.last_error) == (0, None, "")


def test_what_is_refused_for_good_is_switched_off_and_its_owner_sees_that(me):
    channel = by_mail(me)
    tell(me, "train")
    carry = Carrier(*[WebhookFailed("hooks.example answered 404.", permanent=True)] * 9)
    for hour in range(9):
        send_due(at=NOON + timedelta(hours=hour), carry=carry)
    channel.refresh_from_db()

    assert (channel.is_on, len(carry.faults)) == (False, 6)
    assert "404" in channel.off_reason
    assert Delivery.objects.get().state == DeliveryState.GIVEN_UP
    assert Notice.objects.get(kind=Kind.CHANNEL_OFF).is_shown


def test_whoever_is_killed_while_sending_is_not_waited_for_longer_than_its_claim(me):
    by_mail(me)
    tell(me, "train")

    class Killed(BaseException):
        pass

    with pytest.raises(Killed):
        send_due(at=later(0), carry=Carrier(Killed()))
    carry = Carrier()
    assert send_due(at=later(60), carry=carry) == 0
    assert send_due(at=later(121), carry=carry) == 1


def test_two_who_send_at_once_send_once(me):
    channel = by_mail(me)
    tell(me, "train")
    seen: list[int] = []

    def carry(of: Channel, message: sending.Message) -> None:
        seen.append(of.pk)
        if len(seen) == 1:
            assert sending._send_one(channel.pk, later(0), carry) == 0

    send_due(at=later(0), carry=carry)
    assert seen == [channel.pk]


def test_without_a_server_mails_wait_and_nothing_counts_as_failed(me, settings):
    settings.EMAIL_HOST = ""
    channel = by_mail(me)
    tell(me, "train")
    assert send_due(at=later(1)) == 0
    channel.refresh_from_db()
    assert channel.n_failures == 0
    settings.EMAIL_HOST = "mail.example"
    assert send_due(at=later(2)) == 1


def test_who_has_left_is_sent_nothing(me):
    by_mail(me)
    tell(me, "train")
    type(me).objects.filter(pk=me.pk).update(is_active=False)

    assert send_due(at=later(1)) == 0


def test_a_name_calls_nobody_in_a_chat_and_adds_no_line_to_a_mail(me):
    assert escaped("<!channel> & <https://evil.example|click>") == (
        "&lt;!channel&gt; &amp; &lt;https://evil.example|click&gt;"
    )
    by_mail(me)
    tell(me, "train\nBcc: other@example.com")
    send_due(at=later(1))

    assert mail.outbox[0].subject == "[Switchyard] train Bcc: other@example.com has failed"
    assert mail.outbox[0].recipients() == ["me@example.com"]


# Choices ---------------------------------------------------------------------------------------------------------


def test_a_webhook_is_sealed_never_logged_and_kept_until_it_is_taken_away(me):
    choose(
        actor=me, at=NOON, choices=Choices(shown=ALL, ways={"webhook": Choice(kinds=ALL)}, webhook_url=HOOK)
    )
    channel = Channel.objects.get(way="webhook")
    assert channel.host == "hooks.example"
    assert "very-secret" not in channel.sealed_url
    choose(actor=me, at=NOON, choices=Choices(shown=ALL, ways={"webhook": Choice(kinds=ALL, pace_s=3600)}))
    channel.refresh_from_db()
    assert channel.pace_s == 3600
    events = Event.objects.filter(kind="user.notices_chosen")
    assert events.count() == 2
    assert all(event.is_audit and event.is_private for event in events)
    assert "very-secret" not in str([(event.before, event.after, event.data) for event in events])
    choose(actor=me, at=NOON, choices=Choices(shown=ALL, forgets_webhook=True))
    assert not Channel.objects.filter(way="webhook").exists()


@pytest.mark.parametrize("url", ["https://10.0.0.1/x", "http://hooks.example/x", "nonsense"])
def test_a_bad_address_changes_nothing(me, url: str):
    with pytest.raises(InvalidInput):
        choose(
            actor=me,
            at=NOON,
            choices=Choices(shown=frozenset(), ways={"webhook": Choice(kinds=ALL)}, webhook_url=url),
        )

    assert not Channel.objects.exists()


def test_kinds_without_an_address_are_refused(me):
    with pytest.raises(InvalidInput):
        choose(actor=me, at=NOON, choices=Choices(shown=ALL, ways={"webhook": Choice(kinds=ALL)}))


def test_saving_switches_a_channel_on_again_and_what_was_unticked_is_not_sent(me):
    channel = by_mail(me, is_on=False, off_reason="broken", n_failures=3)
    choose(actor=me, at=NOON, choices=Choices(shown=ALL, ways={"email": Choice(kinds=ALL)}))
    channel.refresh_from_db()
    assert (channel.is_on, channel.off_reason, channel.n_failures) == (True, "", 0)
    tell(me, "train")
    choose(actor=me, at=NOON, choices=Choices(shown=ALL))
    assert send_due(at=later(1)) == 0
    assert Delivery.objects.get().state == DeliveryState.GIVEN_UP


def test_nobody_reads_for_another(me):
    other = person()
    tell(me, "train")
    tell(other, "theirs")
    notice = Notice.objects.get(user=other)

    assert mark_read(actor=me, at=NOON, notice_ids=[notice.pk]) == 0
    assert mark_read(actor=me, at=NOON) == 1
    notice.refresh_from_db()
    assert notice.read_at is None


def test_a_test_message_tells_what_went_wrong_and_cannot_be_sent_for_ever(me):
    by_mail(me)
    with pytest.raises(DidNotArrive, match="answered 404"):
        send_test(
            actor=me, way="email", at=NOON, carry=Carrier(WebhookFailed("it answered 404.", permanent=True))
        )
    for _ in range(9):
        send_test(actor=me, way="email", at=NOON, carry=Carrier())
    with pytest.raises(TooManyTests):
        send_test(actor=me, way="email", at=NOON, carry=Carrier())


def test_what_is_old_is_forgotten(me):
    tell(me, "old")
    services.prune(at=NOON + timedelta(days=91))

    assert not Notice.objects.exists()
