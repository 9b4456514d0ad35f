"""Writes notices: each thing once, what is alike counted up, and a delivery for every channel that wants it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q

from apps.notices.kinds import Kind, shown_by_default
from apps.notices.models import Channel, Delivery, Notice, Preference
from apps.teams.models import User

_ALIKE_WITHIN: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What one person is to be told.

    Attributes:
        key: The same thing is told a person once.
        alike: Of what is alike only one notice stays unread; empty: each stands alone.
        title_of_many: The title when it happened more than once; `{n}` is how often.
    """

    user_id: int
    kind: Kind
    key: str
    title: str
    path: str
    at: datetime
    body: str = ""
    alike: str = ""
    title_of_many: str = ""
    path_of_many: str = ""
    job_id: int | None = None
    event_id: int | None = None


@transaction.atomic
def write(drafts: Sequence[Draft], *, at: datetime) -> list[Notice]:
    """Write notices in the caller's transaction; what was told already is left out. Returns those that tell more."""
    drafts = _untold(drafts)
    if not drafts:
        return []
    people = {
        one.pk: one for one in User.objects.filter(pk__in={one.user_id for one in drafts}, is_active=True)
    }
    shown = _shown_to(people)
    channels: dict[int, list[Channel]] = defaultdict(list)
    for channel in Channel.objects.filter(user_id__in=people, is_on=True):
        channels[channel.user_id].append(channel)
    told: list[Notice] = []
    moved: set[int] = set()
    open_now = _open_now(drafts, at)
    for draft in drafts:
        if draft.user_id not in people:
            continue
        is_shown = draft.kind is Kind.CHANNEL_OFF or draft.kind in shown[draft.user_id]
        if not is_shown and not any(draft.kind in one.kinds for one in channels[draft.user_id]):
            continue
        place = (draft.user_id, draft.kind.value, draft.alike)
        known = open_now.get(place) if draft.alike else None
        if known is not None:
            _count_up(known, draft)
            if id(known) not in moved:
                moved.add(id(known))
                told.append(known)
            continue
        made = _made(draft, is_shown=is_shown)
        moved.add(id(made))
        told.append(made)
        if draft.alike:
            open_now[place] = made
    known_before = [one for one in told if one.pk is not None]
    Notice.objects.bulk_create([one for one in told if one.pk is None])
    # One statement; bulk_update() would build an expression a value.
    Notice.objects.bulk_create(
        known_before,
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["n", "title", "body", "path", "at", "job"],
    )
    Delivery.objects.bulk_create(
        [
            Delivery(notice=notice, channel=channel, made_at=at)
            for notice in told
            for channel in channels[notice.user_id]
            if notice.kind in channel.kinds
        ],
        ignore_conflicts=True,  # it waits already, and takes the new count along
    )
    return told


def _untold(drafts: Sequence[Draft]) -> list[Draft]:
    """The first of each key, of those that nobody wrote yet."""
    first = {(one.user_id, one.key): one for one in reversed(drafts)}
    known = set(
        Notice.objects.filter(
            user_id__in={user_id for user_id, _ in first}, key__in={key for _, key in first}
        ).values_list("user_id", "key")
    )
    return [one for place, one in sorted(first.items(), key=lambda item: item[1].at) if place not in known]


def _shown_to(people: Mapping[int, User]) -> Mapping[int, frozenset[str]]:
    chosen = {row.user_id: frozenset(row.kinds) for row in Preference.objects.filter(user_id__in=people)}
    return {
        pk: chosen[pk] if pk in chosen else shown_by_default(may_operate=person.is_operator)
        for pk, person in people.items()
    }


def _open_now(drafts: Sequence[Draft], at: datetime) -> dict[tuple[int, str, str], Notice]:
    """Unread notices, a moment old, that more of the same may be counted on; locked."""
    wanted = [one for one in drafts if one.alike]
    if not wanted:
        return {}
    rows = Notice.objects.select_for_update().filter(
        Q(read_at=None, first_at__gt=at - _ALIKE_WITHIN),
        user_id__in={one.user_id for one in wanted},
        alike__in={one.alike for one in wanted},
    )
    return {(row.user_id, row.kind, row.alike): row for row in rows.order_by("id")}


def _made(draft: Draft, *, is_shown: bool) -> Notice:
    return Notice(
        user_id=draft.user_id,
        kind=draft.kind,
        key=draft.key,
        alike=draft.alike,
        title=_one_line(draft.title, 200),
        body=draft.body[:2000],
        path=_address(draft.path),
        job_id=draft.job_id,
        event_id=draft.event_id,
        is_shown=is_shown,
        first_at=draft.at,
        at=draft.at,
    )


def _count_up(notice: Notice, draft: Draft) -> None:
    notice.n += 1
    notice.title = _one_line(draft.title_of_many.format(n=notice.n), 200)
    notice.body = draft.body[:2000]
    notice.path = _address(draft.path_of_many, draft.path)
    notice.at = max(notice.at, draft.at)
    notice.job_id = None


_LONGEST_PATH: Final = 300
_ALL: Final = "/me/notices/"


def _address(*paths: str) -> str:
    """The first of these that can be kept: a name in an address may be nine characters a letter."""
    return next((path for path in paths if path and len(path) <= _LONGEST_PATH), _ALL)


def _one_line(text: str, most: int) -> str:
    line = " ".join(text.replace("\x00", "").split())
    return line if len(line) <= most else line[: most - 1] + "…"
