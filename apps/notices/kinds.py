"""What people can be told, and which of it they are told unless they say otherwise."""

from dataclasses import dataclass
from typing import Final

from django.db import models


class Kind(models.TextChoices):
    JOB_STARTED = "job_started", "My job has started"
    JOB_FAILED = "job_failed", "My job failed, was stopped or was interrupted"
    JOB_CURTAILED = "job_curtailed", "My job is slowed or paused for a grid event"
    FORECAST_MOVED = "forecast_moved", "My job is expected over an hour sooner or later"
    TEAM_QUOTA = "team_quota", "The quota or the limits of a team of mine were changed"
    RESERVATION_AT_RISK = "reservation_at_risk", "A reservation of mine or of my team is at risk"
    EVENT_ANNOUNCED = "event_announced", "A grid event was announced"
    CHANNEL_OFF = "channel_off", "A way to tell me things was switched off"


# Nobody can choose not to see that nothing reaches them any more.
CHOSEN: Final = tuple(kind for kind in Kind if kind is not Kind.CHANNEL_OFF)
_OF_EVERYBODY: Final = tuple(kind for kind in CHOSEN if kind is not Kind.EVENT_ANNOUNCED)


class Way(models.TextChoices):
    """How a notice leaves the pages."""

    EMAIL = "email", "e-mail"
    WEBHOOK = "webhook", "webhook"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often messages come at the most; what happens in between is gathered into the next."""

    seconds: int
    label: str


PACES: Final = (
    Pace(300, "at most every 5 minutes"),
    Pace(3600, "at most every hour"),
    Pace(86_400, "at most once a day"),
)


def shown_by_default(*, may_operate: bool) -> frozenset[str]:
    """Kinds that a person sees on the pages who has chosen nothing: a grid event is for those who plan for it."""
    kinds = CHOSEN if may_operate else _OF_EVERYBODY
    return frozenset(kind.value for kind in kinds)
