"""Keeps running work within an envelope that falls: what would draw more than the step that comes is slowed in time.

The planner starts nothing that would run into a lower step; what runs already, or draws more than was thought, is a
demand-response event like any other: announced from the envelope, planned within the tiers of the jobs, committed by
whoever set the envelope, carried out and given back by `control`.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from apps.core.errors import DomainError
from apps.power.budget import Step
from apps.power.models import DemandResponseEvent, EventSource, PowerLimit
from apps.power.plan_services import ENVELOPE
from apps.power.response_services import EventDraft, announce_event, cancel_event
from apps.power.selectors import FRESH, budgets, latest_readings
from apps.scheduling.response import services
from apps.scheduling.response.deciding import Wish, domain_w
from apps.scheduling.response.site import Site, read_site

LEAD: Final = timedelta(minutes=15)  # time for most checkpoints
_RECOVERY_S: Final = 3600
_NO_REBOUND_SHARE: Final = 10.0  # who set the envelope allows what comes after it
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Window:
    limit: PowerLimit
    step: Step
    start_at: datetime
    end_at: datetime

    @property
    def name(self) -> str:
        """What the event of this window is called: another step, or another hour, is another event."""
        times = f"{self.start_at:%Y-%m-%dT%H:%MZ}/{self.end_at:%Y-%m-%dT%H:%MZ}"
        return f"{ENVELOPE}{self.limit.domain_id}:{times}:{self.step.limit_w:g}"


def keep_envelopes(at: datetime) -> int:
    """Announce and commit what steps ask that hold, or come soon, and would not be kept; how many that were.

    An event of an envelope that was changed since is cancelled. Called again it changes nothing.
    """
    windows = list(_windows(at))
    _cancel_others({window.name for window in windows}, at)
    if not windows:
        return 0
    known = set(
        DemandResponseEvent.objects.filter(
            source=EventSource.SCHEDULE, external_id__in=[window.name for window in windows]
        ).values_list("external_id", flat=True)
    )
    fresh = [window for window in windows if window.name not in known]
    if not fresh:
        return 0
    readings = latest_readings(sorted({window.limit.domain_id for window in fresh}))
    site: Site | None = None
    n_kept = 0
    for window in fresh:
        reading = readings.get(window.limit.domain_id)
        if reading is not None and reading.at >= at - FRESH and reading.draw_w <= window.step.limit_w:
            continue
        site = read_site(at) if site is None or n_kept else site
        if _draws_w(site, window.limit.domain_id) <= window.step.limit_w:
            continue
        try:
            _commit(window, at)
            n_kept += 1
        except DomainError as error:
            _log.warning("%s: %s", window.name, error.message)
        except Exception:
            # What cannot be decided for one domain keeps no cap of another from being looked after.
            _log.exception("%s could not be kept", window.name)
    return n_kept


def _draws_w(site: Site, domain_id: int) -> float:
    """What a domain draws, on its own side of the meter."""
    meter = site.domains[domain_id].meter
    return meter.fixed_w + meter.k * domain_w(site, domain_id)


def _windows(at: datetime) -> Iterator[_Window]:
    """Those that hold now, or begin soon."""
    for limit, budget in budgets().values():
        for step in budget.steps:
            for start_at, end_at in step.windows(budget.zone, at, at + LEAD):
                if end_at > at:
                    yield _Window(limit, step, start_at, end_at)


@transaction.atomic
def _commit(window: _Window, at: datetime) -> None:
    draft = EventDraft(
        domain=window.limit.domain.name,
        target_kind="limit_to",
        value=window.step.limit_w,
        start_at=max(window.start_at, at),
        end_at=window.end_at,
        source=EventSource.SCHEDULE,
        external_id=window.name,
        notified_at=at,
        ramp_start_at=at,
        recovery_s=_RECOVERY_S,
        rebound_limit_share=_NO_REBOUND_SHARE,
        reason="The envelope of the domain.",
    )
    event = announce_event(draft=draft, actor=None, at=at, is_below_floor_confirmed=True)
    plan = services.preview(event_id=event.pk, wish=Wish(), actor=None, at=at)
    services.commit(event_id=event.pk, inputs_hash=plan.inputs_hash, actor=None, at=at)


def _cancel_others(names: set[str], at: datetime) -> None:
    """Give up what the envelope does not ask any more."""
    rows = DemandResponseEvent.objects.filter(
        source=EventSource.SCHEDULE,
        external_id__startswith=ENVELOPE,
        end_at__gt=at,
        cancelled_at=None,
        opted_out_at=None,
    )
    for event in rows:
        if event.external_id not in names:
            cancel_event(event_id=event.pk, actor=None, at=at, reason="The envelope was changed.")
