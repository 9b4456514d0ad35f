"""What a person was told, and how they want to be told."""

from collections.abc import Mapping
from typing import Final

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Func, IntegerField, QuerySet

from apps.notices.kinds import shown_by_default
from apps.notices.models import Channel, Notice, Preference
from apps.teams.models import User

MOST_COUNTED: Final = 100


def notices_of(viewer: User) -> QuerySet[Notice]:
    """A person's own; nobody sees another's."""
    return Notice.objects.filter(user=viewer, is_shown=True)


def n_unread(viewer: User) -> int:
    """How many are unread, up to MOST_COUNTED."""
    return notices_of(viewer).filter(read_at=None)[:MOST_COUNTED].count()


def unread_of(viewer: User) -> Func:
    """The same as an expression, for who asks the database for something else anyway."""
    unread = notices_of(viewer).filter(read_at=None).values("pk")[:MOST_COUNTED]
    return Func(ArraySubquery(unread), function="cardinality", output_field=IntegerField())


def notices_about(viewer: User, job_id: int) -> QuerySet[Notice]:
    """What this person was told of one job."""
    return notices_of(viewer).filter(job_id=job_id)


def shown_kinds(viewer: User) -> frozenset[str]:
    chosen = Preference.objects.filter(user=viewer).values_list("kinds", flat=True).first()
    return frozenset(chosen) if chosen is not None else shown_by_default(may_operate=viewer.is_operator)


def channels_of(viewer: User) -> Mapping[str, Channel]:
    """By way."""
    return {row.way: row for row in Channel.objects.filter(user=viewer)}
