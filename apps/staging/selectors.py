"""What data sets there are, where, and what is on its way."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Prefetch, Q, QuerySet

from apps.inventory.models import Backend, Node
from apps.staging.models import Copy, Dataset, Store, Transfer
from apps.staging.routes import Roads
from apps.teams import policies
from apps.teams.models import User

# After a transfer was given up or cancelled, nobody but a person asks for it again before this.
RESTS_FOR: Final = timedelta(hours=1)


def datasets_visible_to(viewer: User) -> QuerySet[Dataset]:
    """Everyone signed in sees what data sets there are, with their copies and what is on its way at hand."""
    copies = Copy.objects.select_related("domain").order_by("domain__name")
    under_way = Transfer.objects.filter(ended_at=None).select_related("to_domain").order_by("to_domain__name")
    datasets = Dataset.objects.prefetch_related(
        Prefetch("copies", copies), Prefetch("transfers", under_way, to_attr="under_way")
    )
    return datasets if viewer.is_authenticated else datasets.none()


def stores_visible_to(viewer: User) -> QuerySet[Store]:
    """Everyone signed in sees which domains have a store, and how fast it is."""
    stores = Store.objects.select_related("domain")
    return stores if viewer.is_authenticated else stores.none()


def transfers_visible_to(viewer: User) -> QuerySet[Transfer]:
    """Everyone signed in sees what is, and was, on its way."""
    transfers = Transfer.objects.select_related("dataset", "to_domain", "from_domain")
    return transfers if viewer.is_authenticated else transfers.none()


def may_see_addresses(viewer: User) -> bool:
    """Folders and buckets of the site are for those who look after it."""
    return policies.may_look_after(viewer)


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A data set as the planner wants to know it; domains by id."""

    id: int
    name: str
    size_gib: float
    at: frozenset[int] = frozenset()
    arrives_at: dict[int, datetime] = field(default_factory=dict)
    # A transfer to there was given up or cancelled: `request_stage` does nothing before this.
    rests_until_at: dict[int, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagingPicture:
    datasets: tuple[DatasetRow, ...]
    roads: Roads


def staging_picture(at: datetime) -> StagingPicture:
    """All that a pass has to know of data: five queries, whatever there is; one where there are no data sets."""
    datasets = list(Dataset.objects.order_by("id").values_list("id", "name", "size_gib"))
    if not datasets:
        return StagingPicture((), Roads((), frozenset()))
    copies: dict[int, set[int]] = defaultdict(set)
    for dataset_id, domain_id in Copy.objects.values_list("dataset_id", "domain_id"):
        copies[dataset_id].add(domain_id)
    arrives: dict[int, dict[int, datetime]] = defaultdict(dict)
    rests: dict[int, dict[int, datetime]] = defaultdict(dict)
    rows = Transfer.objects.filter(Q(ended_at=None) | Q(ended_at__gt=at - RESTS_FOR)).order_by("id")
    for dataset_id, domain_id, expected, ended, error in rows.values_list(
        "dataset_id", "to_domain_id", "expected_end_at", "ended_at", "error"
    ):
        # The latest counts.
        rests[dataset_id].pop(domain_id, None)
        if ended is None:
            arrives[dataset_id][domain_id] = expected
        elif error:
            rests[dataset_id][domain_id] = ended + RESTS_FOR
    return StagingPicture(
        tuple(
            DatasetRow(
                id=pk,
                name=name,
                size_gib=size_gib,
                at=frozenset(copies.get(pk, ())),
                arrives_at=arrives.get(pk, {}),
                rests_until_at=rests.get(pk, {}),
            )
            for pk, name, size_gib in datasets
        ),
        Roads(Store.objects.order_by("domain_id"), _simulated_domains()),
    )


def _simulated_domains() -> frozenset[int]:
    """Storage domains in which only simulated clusters have nodes."""
    backends: dict[int, set[str]] = defaultdict(set)
    rows = Node.objects.filter(storage__isnull=False).values_list("storage_id", "cluster__backend")
    for domain_id, backend in rows.order_by().distinct():
        backends[domain_id].add(backend)
    return frozenset(domain_id for domain_id, found in backends.items() if found == {Backend.SIMULATED})


def places_of_copies(names: Collection[str]) -> dict[str, frozenset[int]]:
    """The storage domains, by id, that hold a copy of each of these data sets; one that is not there is absent."""
    found: dict[str, set[int]] = {}
    rows = Dataset.objects.filter(name__in=names).values_list("name", "copies__domain_id")
    for name, domain_id in rows:
        found.setdefault(name, set()).update(() if domain_id is None else (domain_id,))
    return {name: frozenset(places) for name, places in found.items()}


def rests_until(dataset_id: int, to_domain_id: int, *, at: datetime) -> datetime | None:
    """Until when a transfer that was given up is not begun again by itself; None: it may be."""
    last = (
        Transfer.objects.filter(dataset_id=dataset_id, to_domain_id=to_domain_id, ended_at__isnull=False)
        .order_by("-id")
        .values_list("ended_at", "error")
        .first()
    )
    if last is None:
        return None
    ended_at, error = last
    assert ended_at is not None
    until = ended_at + RESTS_FOR
    return until if error and until > at else None
