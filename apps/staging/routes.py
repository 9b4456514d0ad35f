"""From which copy a data set is best fetched, and what carries it."""

from collections.abc import Collection, Iterable
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


class Roads:
    """From where to where copies could be carried, and how fast, by the stores alone: no store or mover is asked.

    What `route_to` finds when a transfer is begun counts; this tells for all domains at once, from few rows.
    """

    def __init__(self, stores: Iterable[Store], simulated: Collection[int]) -> None:
        """`simulated`: domains without a store to which transfers are played."""
        self._stores = {store.domain_id: store for store in stores}
        self._simulated = simulated
        self._known: dict[tuple[int, int], float | None] = {}

    def rate_gib_per_s(self, at: Collection[int], to: int) -> float | None:
        """How fast a data set with copies in `at` could come to a domain; None if it could not."""
        rates = [rate for domain in at if domain != to and (rate := self._between(domain, to)) is not None]
        return max(rates, default=None)

    def _between(self, source: int, target: int) -> float | None:
        key = source, target
        if key not in self._known:
            self._known[key] = self._look(self._stores.get(source), self._stores.get(target), target)
        return self._known[key]

    def _look(self, source: Store | None, target: Store | None, to: int) -> float | None:
        if target.is_simulated if target is not None else to in self._simulated:
            return _rate(source, target)
        if source is None or target is None or source.is_simulated:
            return None
        try:
            mover = choice.mover_for(source.base_uri, target.base_uri)
        except BadAddress:
            return None
        return None if mover is None else _rate(source, target)


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
