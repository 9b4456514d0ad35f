"""Times in notices: of the site's zone, which is named, since a mail is read anywhere."""

from datetime import datetime

from django.utils import timezone


def moment(at: datetime) -> str:
    local = timezone.localtime(at)
    return f"{local:%a} {local.day} {local:%b %H:%M %Z}"


def span(begin_at: datetime, end_at: datetime) -> str:
    begin, end = timezone.localtime(begin_at), timezone.localtime(end_at)
    if begin.date() == end.date():
        return f"{begin:%a} {begin.day} {begin:%b %H:%M}–{end:%H:%M %Z}"
    return f"{moment(begin_at)} – {moment(end_at)}"


def listed(words: list[str], *, most: int = 3) -> str:
    """A few words, and how many more there are."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"
