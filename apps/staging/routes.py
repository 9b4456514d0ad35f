"""From which copy a data set is best fetched, and what carries it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from apps.core.errors import DomainError
from apps.inventory.models import Backend, Domain, Node
from apps.staging.models import Copy, Dataset, Store
from apps.staging.movers import choice
from apps.staging.movers.base import GIB
from apps.staging.movers.places import BadAddress, joined, require_within

DEFAULT_RATE_GIB_PER_S: Final = 1.0


class NoRoute(DomainError):
    """Nothing can bring the data set there."""

    code = "no_route"


@dataclass(frozen=True, slots=True)
class Route:
    """How a copy gets to a storage domain."""

    mover: str
    from_domain_id: int | None
    source_uri: str  # empty, as the target, where it is played
    target_uri: str
    rate_gib_per_s: float

    @property
    def is_simulated(self) -> bool:
        return self.mover == choice.SIMULATED


def route_to(dataset: Dataset, to_domain: Domain) -> Route:
    """The quickest route; of several, from the domain that was made first. Raises NoRoute, in words for a person."""
    copies = list(Copy.objects.filter(dataset=dataset).exclude(domain=to_domain).order_by("domain_id"))
    if not copies:
        raise NoRoute(f"There is no copy of {dataset} to fetch.")
    stores = {
        store.domain_id: store
        for store in Store.objects.filter(domain_id__in=[to_domain.pk, *(copy.domain_id for copy in copies)])
    }
    target = stores.get(to_domain.pk)
    if is_simulated(to_domain, target):
        rates = {copy.domain_id: _rate(stores.get(copy.domain_id), target) for copy in copies}
        best = max(rates, key=lambda domain_id: (rates[domain_id], -domain_id))
        return Route(choice.SIMULATED, best, "", "", rates[best])
    if target is None:
        raise NoRoute(f"{to_domain} has no store; an operator names one with POST /api/v1/stores.")
    routes = [
        route
        for copy in copies
        if (source := stores.get(copy.domain_id)) is not None
        and (route := _route(dataset, copy, source, target)) is not None
    ]
    if not routes:
        raise NoRoute(f"No copy of {dataset} lies in a store from which it can be carried to {to_domain}.")
    return max(routes, key=lambda route: route.rate_gib_per_s)  # the first of equals


def is_simulated(domain: Domain, store: Store | None) -> bool:
    """Are transfers to it played? As its store says; without one, when only simulated clusters have nodes there."""
    if store is not None:
        return store.is_simulated
    backends = set(Node.objects.filter(storage=domain).values_list("cluster__backend", flat=True).distinct())
    return backends == {Backend.SIMULATED}


def uri_of(dataset: Dataset, copy: Copy | None, store: Store) -> str:
    """Where a copy lies, or would lie."""
    return copy.uri if copy is not None and copy.uri else joined(store.base_uri, dataset.name)


def duration(n_bytes: float, rate_gib_per_s: float) -> timedelta:
    """How long so much takes."""
    return timedelta(seconds=min(max(n_bytes, 0.0) / (rate_gib_per_s * GIB), 1e9))


def _route(dataset: Dataset, copy: Copy, source: Store, target: Store) -> Route | None:
    if source.is_simulated:
        return None
    from_uri, to_uri = uri_of(dataset, copy, source), uri_of(dataset, None, target)
    try:
        require_within(from_uri, source.base_uri)
        require_within(to_uri, target.base_uri)
        mover = choice.mover_for(from_uri, to_uri)
    except BadAddress:
        return None
    if mover is None:
        return None
    return Route(mover, source.domain_id, from_uri, to_uri, _rate(source, target))


def _rate(source: Store | None, target: Store | None) -> float:
    known = [rate for store in (source, target) if store is not None for rate in _rates(store)]
    return min(known, default=DEFAULT_RATE_GIB_PER_S)


def _rates(store: Store) -> list[float]:
    return [store.rate_gib_per_s, *([] if store.most_gib_per_s is None else [store.most_gib_per_s])]
