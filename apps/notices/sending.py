"""Sends what waits: one message a channel and pace, however much happened. Two at once, or a kill, lose nothing.

A channel is claimed for two minutes by a conditional update, then spoken to, then settled. Who is killed after the
message left and before that was written down has it sent once more: at least once, never silently not at all.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.core import clock
from apps.core.errors import OutsideError
from apps.core.locks import session_lock
from apps.core.sealing import Unreadable
from apps.notices import mail, webhook
from apps.notices.addresses import SEAL
from apps.notices.kinds import PACES, Kind, Way
from apps.notices.models import Channel, Delivery, DeliveryState, Notice
from apps.notices.words import moment
from apps.notices.writing import Draft, write

_LOG: Final = logging.getLogger(__name__)
_LOCK: Final = 0x6E6F7469
_CLAIMED: Final = timedelta(minutes=2)
_MOST_A_LOOK_S: Final = 30.0  # other work of this worker waits behind it
_MOST_IN_ONE: Final = 1000
_MOST_LISTED: Final = 30
_FIRST_WAIT_S: Final = 30.0
_LONGEST_WAIT_S: Final = 6 * 3600.0
_MOST_REFUSALS: Final = 3
_MOST_FAILURES: Final = 14  # with these waits, about two days

Carrier = Callable[[Channel, "Message"], None]


@dataclass(frozen=True, slots=True)
class Message:
    """What leaves: one notice, or what was gathered."""

    subject: str
    text: str


def send_due(*, at: datetime, carry: Carrier | None = None) -> int:
    """Send what is due; how many messages left. One look at a time in the whole site."""
    n_sent, until_s = 0, clock.monotonic_s() + _MOST_A_LOOK_S
    with session_lock(_LOCK) as is_ours:
        if not is_ours:
            return 0
        for channel_id in list(_due(at).values_list("pk", flat=True)[:500]):
            if clock.monotonic_s() > until_s:
                break
            n_sent += _send_one(channel_id, at, carry or carry_out)
    return n_sent


def _due(at: datetime) -> QuerySet[Channel]:
    waiting = Delivery.objects.filter(channel=OuterRef("pk"), state=DeliveryState.WAITING)
    return (
        Channel.objects.filter(Exists(waiting), is_on=True, user__is_active=True, way__in=_open_ways())
        .filter(Q(retry_at=None) | Q(retry_at__lte=at))
        .filter(Q(busy_until_at=None) | Q(busy_until_at__lte=at))
        .filter(_paced(at))
        .order_by("last_sent_at", "pk")
    )


def _paced(at: datetime) -> Q:
    """Channels whose last message was long enough ago."""
    found = Q(last_sent_at=None)
    for pace in PACES:
        found |= Q(pace_s=pace.seconds, last_sent_at__lte=at - timedelta(seconds=pace.seconds))
    return found


def _open_ways() -> list[str]:
    """Where the site has no server for mail, mails wait until it has."""
    return [way for way in Way.values if way != Way.EMAIL or mail.can_send()]


def _send_one(channel_id: int, at: datetime, carry: Carrier) -> int:
    if not _due(at).filter(pk=channel_id).update(busy_until_at=at + _CLAIMED):
        return 0
    channel = Channel.objects.select_related("user").get(pk=channel_id)
    waiting = list(
        Delivery.objects.filter(channel=channel, state=DeliveryState.WAITING)
        .select_related("notice")
        .order_by("-notice__at", "-id")[:_MOST_IN_ONE]
    )
    if not waiting:
        Channel.objects.filter(pk=channel_id).update(busy_until_at=None)
        return 0
    try:
        carry(channel, message_of([one.notice for one in waiting]))
    except OutsideError as error:
        _failed(channel, error, at)
        return 0
    _sent(channel, [one.pk for one in waiting], at)
    return 1


def carry_out(channel: Channel, message: Message) -> None:
    """Bring one message to its person; raises OutsideError."""
    if channel.way == Way.EMAIL:
        if not mail.can_send():
            raise mail.MailFailed("This site has no server for mail.")
        if not channel.user.email:
            raise mail.MailFailed("The account has no address.", permanent=True)
        mail.send_text(channel.user.email, subject=message.subject, text=message.text)
        return
    try:
        url = SEAL.unseal(channel.sealed_url)
    except Unreadable:
        raise webhook.WebhookFailed(
            "The stored address cannot be read; enter it again.", permanent=True
        ) from None
    webhook.post_text(url, escaped(message.text))


def escaped(text: str) -> str:
    """As Slack wants it: a job that is called `<!channel>` calls nobody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def message_of(notices: Sequence[Notice]) -> Message:
    """One message for all that waits, the newest first."""
    site = settings.SWITCHYARD_URL
    foot = f"How you are told such things: {site}/me/notices/settings/"
    if len(notices) == 1:
        one = notices[0]
        return Message(one.title, "\n".join(filter(None, [one.title, one.body, site + one.path, "", foot])))
    lines = [f"{len(notices)} notices from Switchyard:", ""]
    for one in notices[:_MOST_LISTED]:
        lines.append(f"- {moment(one.at)}: {one.title} {site}{one.path}")
    if len(notices) > _MOST_LISTED:
        lines.append(f"and {len(notices) - _MOST_LISTED} more: {site}/me/notices/")
    return Message(f"{len(notices)} notices", "\n".join([*lines, "", foot]))


@transaction.atomic
def _sent(channel: Channel, delivery_ids: Sequence[int], at: datetime) -> None:
    Delivery.objects.filter(pk__in=delivery_ids).update(state=DeliveryState.SENT, settled_at=at)
    Channel.objects.filter(pk=channel.pk).update(
        last_sent_at=at, n_failures=0, retry_at=None, last_error="", busy_until_at=None
    )


@transaction.atomic
def _failed(channel: Channel, error: OutsideError, at: datetime) -> None:
    n_failures = channel.n_failures + 1
    _LOG.warning("Channel %s of person %s: %s", channel.pk, channel.user_id, error.message)
    facts = {
        "n_failures": n_failures,
        "last_error": error.message[:300],
        "retry_at": at
        + timedelta(seconds=min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(n_failures - 1, 20))),
        "busy_until_at": None,
    }
    rows = Channel.objects.filter(pk=channel.pk)
    if n_failures < (_MOST_REFUSALS if error.permanent else _MOST_FAILURES):
        rows.update(**facts)
        return
    reason = f"After {n_failures} tries in a row: {error.message}"[:300]
    rows.update(**facts, is_on=False, off_reason=reason)
    Delivery.objects.filter(channel=channel, state=DeliveryState.WAITING).update(
        state=DeliveryState.GIVEN_UP, settled_at=at
    )
    told = Draft(
        user_id=channel.user_id,
        kind=Kind.CHANNEL_OFF,
        key=f"off {channel.pk} {at.isoformat()}",
        title=f"You get no more notices by {channel.get_way_display()}",
        body=f"{reason} Nothing is sent there until you switch it on again.",
        path="/me/notices/settings/",
        at=at,
    )
    write([told], at=at)
