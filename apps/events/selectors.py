"""Reading the log: by cursor for followers, by subject for a page, and the audit trail."""

from django.db.models import Max, QuerySet

from apps.events.models import Event


def latest_event_id() -> int:
    """Grows with every event: cheap to ask, for telling whether a page has anything new to show."""
    return int(Event.objects.aggregate(latest=Max("id"))["latest"] or 0)


def events_of(subject_kind: str, subject_id: int) -> QuerySet[Event]:
    """What happened to one thing, the newest first."""
    return Event.objects.filter(subject_kind=subject_kind, subject_id=subject_id).order_by("-id")


def audit_trail() -> QuerySet[Event]:
    """What people changed, the newest first."""
    return Event.objects.filter(is_audit=True).order_by("-id")
