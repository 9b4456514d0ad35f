"""Why a domain may draw what it may: which of rating, envelope, event or hold binds now, and until when."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from apps.inventory.models import Domain
from apps.power.budget import Binding, Budget, By, Step
from apps.power.models import DemandResponseEvent, PowerHold, PowerLimit
from apps.power.response import limit_it_w
from apps.power.response_selectors import answered, meter_of, rebound_limit_w, response_of
from apps.power.selectors import budget_of, budgets, it_w_of

LOOK_AHEAD: Final = timedelta(days=8)  # in a week and a day every hour of every weekday has come by


@dataclass(frozen=True, slots=True)
class DomainBinding:
    """The least of what bounds a domain now, on its own side of the meter.

    Attributes:
        step: Of the envelope, where that binds.
        event_id: Whose target, or rebound limit, binds.
        until_at: When what binds is over by the clock; None: it lasts, or nobody knows.
    """

    limit_w: float
    by: By
    step: Step | None = None
    event_id: int | None = None
    until_at: datetime | None = None


def bindings(domains: Sequence[Domain], at: datetime) -> Mapping[int, DomainBinding]:
    """By domain id, what binds each; those that nothing bounds are absent. Two queries beside the limits themselves.

    Only events that somebody has committed a plan for count. A domain is also bound by all above it.
    """
    ids = {domain.pk for domain in domains}
    events: dict[int, list[DemandResponseEvent]] = defaultdict(list)
    for event in answered().filter(
        domain__in=ids, start_at__lte=at, is_test=False, end_at__gt=at - LOOK_AHEAD
    ):
        events[event.domain_id].append(event)
    holds = set(PowerHold.objects.filter(domain__in=ids).values_list("domain_id", flat=True))
    found: dict[int, DomainBinding] = {}
    for domain in domains:
        told = list(_told(domain, events[domain.pk], domain.pk in holds, at))
        if told:
            found[domain.pk] = min(told, key=lambda one: one.limit_w)
    return found


def _told(
    domain: Domain, events: Iterable[DemandResponseEvent], is_held: bool, at: datetime
) -> Iterable[DomainBinding]:
    limit: PowerLimit | None = getattr(domain, "power_limit", None)
    if limit is not None:
        budget = budget_of(limit)
        if (binding := budget.at(at)) is not None:
            yield _of_budget(budget, binding, at)
    meter = meter_of(domain)
    for event in events:
        response = response_of(event)
        over_at = response.binds_until_at
        if at < over_at:
            target_w = limit_it_w(response, meter)
            if target_w is not None:
                yield DomainBinding(
                    meter.fixed_w + meter.k * target_w, By.EVENT, event_id=event.pk, until_at=over_at
                )
        elif (rebound_w := rebound_limit_w(event, at)) is not None:
            until_at = over_at + timedelta(seconds=event.recovery_s)
            yield DomainBinding(rebound_w, By.EVENT, event_id=event.pk, until_at=until_at)
    if is_held:
        yield DomainBinding(0.0, By.HOLD)


def _of_budget(budget: Budget, binding: Binding, at: datetime) -> DomainBinding:
    until_at = None
    if binding.step is not None:
        windows = binding.step.windows(budget.zone, at, at + timedelta(microseconds=1))
        until_at = max(end for start, end in windows if start <= at < end)
    return DomainBinding(binding.limit_w, binding.by, binding.step, until_at=until_at)


@dataclass(frozen=True, slots=True)
class Coming:
    """A limit that changes by the clock.

    Attributes:
        limit_w: What holds from then on, on the domain's own side of the meter; None: no limit.
    """

    at: datetime
    limit_w: float | None
    by: By | None


def coming_steps(limit: PowerLimit, at: datetime, *, until: datetime) -> list[Coming]:
    """How the limit of a domain changes until then, events aside."""
    budget = budget_of(limit)
    found: list[Coming] = []
    last_w = None if (now := budget.at(at)) is None else now.limit_w
    for mark in budget.changes_at(at, until):
        then = budget.at(mark)
        then_w = None if then is None else then.limit_w
        if then_w != last_w:
            found.append(Coming(mark, then_w, None if then is None else then.by))
            last_w = then_w
    return found


def envelope_limits_w(at: datetime) -> Mapping[int, float]:
    """By domain id, the IT load that an envelope leaves where one holds now."""
    found = {}
    for domain_id, (limit, budget) in budgets().items():
        watts = budget.envelope_w(at)
        if watts is not None:
            found[domain_id] = it_w_of(limit, watts)
    return found


def oversubscription(domains: Sequence[Domain], at: datetime) -> Mapping[int, float]:
    """By domain id, the limits of those just below it, added up, by its own, of those of which all of that is known."""
    told: dict[int, list[float | None]] = defaultdict(list)
    below = Domain.objects.filter(parent__in=[domain.pk for domain in domains]).select_related("power_limit")
    for child in below.prefetch_related("power_limit__envelope"):
        told[child.parent_id or 0].append(_it_w(child, at))
    found = {}
    for domain in domains:
        own_w, known = _it_w(domain, at), [watts for watts in told[domain.pk] if watts is not None]
        if own_w and known and len(known) == len(told[domain.pk]):
            found[domain.pk] = sum(known) / own_w
    return found


def _it_w(domain: Domain, at: datetime) -> float | None:
    limit: PowerLimit | None = getattr(domain, "power_limit", None)
    binding = None if limit is None else budget_of(limit).at(at)
    return None if limit is None or binding is None else it_w_of(limit, binding.limit_w)
