"""What people choose, and what they have read."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from apps.core.errors import DomainError, InvalidInput, NotFound, OutsideError
from apps.events.services import record
from apps.notices import sending, webhook
from apps.notices.addresses import SEAL
from apps.notices.kinds import CHOSEN, PACES, Way
from apps.notices.models import Channel, Delivery, DeliveryState, Notice, Preference, ToldStart
from apps.notices.selectors import channels_of, shown_kinds
from apps.teams import throttles
from apps.teams.models import User

_KEPT: Final = timedelta(days=90)
_KNOWN: Final = frozenset(kind.value for kind in CHOSEN)
_TESTS_PER_HOUR: Final = 10


class TooManyTests(DomainError):
    code, http_status = "too_many_tests", 429


class DidNotArrive(DomainError):
    """The message did not arrive, and why."""

    code, http_status = "did_not_arrive", 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One channel as a person wants it. No kinds: nothing is sent there."""

    kinds: frozenset[str] = frozenset()
    pace_s: int = PACES[0].seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How a person wants to be told.

    Attributes:
        shown: Kinds on the pages.
        webhook_url: A new address; empty: the one that is stored.
        forgets_webhook: Take the address away, and with it the channel.
    """

    shown: frozenset[str]
    ways: dict[str, Choice] = field(default_factory=dict)
    webhook_url: str = field(default="", repr=False)
    forgets_webhook: bool = False


@transaction.atomic
def choose(*, actor: User, choices: Choices, at: datetime) -> None:
    """Keep how a person wants to be told. What waits for a channel that is switched off is not sent.

    Raises:
        InvalidInput: an unknown kind or pace, or an address that may not be posted to.
    """
    _require_known(choices)
    # Of one person who saves twice at once, one is second.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    before = facts_of(actor)
    Preference.objects.update_or_create(user=actor, defaults={"kinds": sorted(choices.shown)})
    known = channels_of(actor)
    for way in Way:
        choice = choices.ways.get(way.value, Choice())
        channel = known.get(way.value) or Channel(user=actor, way=way.value)
        if way is Way.WEBHOOK:
            if choices.webhook_url:
                channel.host = webhook.require_good(choices.webhook_url)
                channel.sealed_url = SEAL.seal(choices.webhook_url)
                channel.last_sent_at = None
            elif choices.forgets_webhook or not channel.sealed_url:
                if choice.kinds and not choices.forgets_webhook:
                    raise InvalidInput.of("webhook_url", "is needed for what you ticked", "missing")
                if way.value in known:
                    channel.delete()
                continue
        elif way.value not in known and not choice.kinds:
            continue
        channel.kinds, channel.pace_s = sorted(choice.kinds), choice.pace_s
        # Whoever saves has looked at it: what failed before is tried anew.
        channel.is_on, channel.off_reason = bool(choice.kinds), ""
        channel.n_failures, channel.retry_at, channel.last_error = 0, None, ""
        channel.save()
        if not channel.is_on:
            _give_up(channel, at)
    after = facts_of(actor)
    if before != after or choices.webhook_url:
        record(
            "user.notices_chosen",
            subject_kind="user",
            subject_id=actor.pk,
            subject_name=actor.username,
            actor=actor,
            at=at,
            is_audit=True,
            is_private=True,
            before=before,
            after=after,
        )


def facts_of(person: User) -> dict[str, object]:
    """What is kept of a person's choices, without the address itself."""
    channels = channels_of(person).values()
    return {
        "shown": sorted(shown_kinds(person)),
        **{one.way: {"kinds": one.kinds, "pace_s": one.pace_s, "host": one.host} for one in channels},
    }


def mark_read(*, actor: User, at: datetime, notice_ids: Collection[int] | None = None) -> int:
    """Note that a person has seen some of their notices, or all; how many were unread."""
    rows = Notice.objects.filter(user=actor, read_at=None)
    return (rows if notice_ids is None else rows.filter(pk__in=notice_ids)).update(read_at=at)


def send_test(*, actor: User, way: str, at: datetime, carry: sending.Carrier | None = None) -> None:
    """Send a message to oneself now, to see that it arrives.

    Raises:
        NotFound: there is no such channel.
        TooManyTests, DidNotArrive
    """
    channel = Channel.objects.select_related("user").filter(user=actor, way=way).first()
    if channel is None:
        raise NotFound("There is no such channel.")
    if wait_s := throttles.take("notice-test", actor.pk, most=_TESTS_PER_HOUR, per_s=3600.0, at=at):
        raise TooManyTests(f"That were many tests; the next can be sent in {throttles.in_words(wait_s)}.")
    text = "This is what a notice from Switchyard looks like. Nothing has happened."
    try:
        (carry or sending.carry_out)(channel, sending.Message("A test", text))
    except OutsideError as error:
        raise DidNotArrive(f"It did not arrive. {error.message}") from error


def prune(*, at: datetime) -> None:
    """Forget what was told long ago, and starts of jobs that wait no more."""
    Notice.objects.filter(at__lt=at - _KEPT).delete()
    ToldStart.objects.exclude(job__state="queued").delete()


def _give_up(channel: Channel, at: datetime) -> None:
    waiting = Delivery.objects.filter(channel=channel, state=DeliveryState.WAITING)
    waiting.update(state=DeliveryState.GIVEN_UP, settled_at=at)


def _require_known(choices: Choices) -> None:
    asked = choices.shown.union(*(one.kinds for one in choices.ways.values()))
    if asked - _KNOWN:
        raise InvalidInput.of("kinds", "names a kind that is not there", "unknown")
    for way, choice in choices.ways.items():
        if way not in Way.values:
            raise InvalidInput.of("ways", "names a way that is not there", "unknown")
        if choice.pace_s not in {pace.seconds for pace in PACES}:
            raise InvalidInput.of("pace_s", "must be one of those offered", "invalid")
