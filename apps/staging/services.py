"""Naming data sets and stores, where copies lie, and transfers under way. An actor of None is the site itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError, transaction

from apps.core.errors import DomainError, InvalidInput, NameTaken, NotFound
from apps.events.services import record
from apps.inventory.models import Backend, Domain, DomainKind, Node
from apps.staging import selectors
from apps.staging.models import Copy, Dataset, Store, Transfer
from apps.staging.movers.base import GIB
from apps.staging.movers.places import BadAddress, parse, require_within
from apps.staging.routes import DEFAULT_RATE_GIB_PER_S, NoRoute, duration, route_to
from apps.teams import policies
from apps.teams.models import User

STORE_FIELDS: Final = ("base_uri", "profile", "rate_gib_per_s", "most_gib_per_s", "is_simulated")
# Copies are counted in bytes, and named in GiB by people: less than this is no mistake of theirs.
_SIZE_TOLERANCE_BYTES: Final = 2**20


class DatasetInUse(DomainError):
    code = "dataset_in_use"


class StoreExists(DomainError):
    code = "store_exists"

    def __init__(self, store: Store) -> None:
        super().__init__(f"{store.domain} has a store already.")
        self.errors = ({"path": "domain", "code": self.code, "message": "has a store already"},)


class StoreInUse(DomainError):
    code = "store_in_use"


@transaction.atomic
def create_dataset(
    *,
    name: str,
    size_gib: float,
    at_domains: Sequence[str] = (),
    uris: Mapping[str, str] | None = None,
    actor: User | None,
    at: datetime,
) -> Dataset:
    """A data set, and the storage domains that hold a copy already.

    Args:
        size_gib: As far as is known; corrected when it is first carried.
        uris: By domain, where a copy lies in its store; default: right below the store's base, by the name.
    """
    _require_may_operate(actor)
    domains = _storage_named(at_domains)
    addresses = _addresses(domains, uris or {})
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(name=name, size_gib=size_gib)
    except IntegrityError:
        raise NameTaken("data set", name) from None
    Copy.objects.bulk_create(
        [Copy(dataset=dataset, domain=domain, uri=addresses.get(domain.name, "")) for domain in domains]
    )
    after = {"size_gib": size_gib, "at": sorted(at_domains)}
    _record("dataset.created", dataset, actor=actor, at=at, is_audit=True, after=after)
    return dataset


@transaction.atomic
def set_copies(
    *,
    dataset_id: int,
    at_domains: Sequence[str],
    uris: Mapping[str, str] | None = None,
    actor: User | None,
    at: datetime,
) -> Dataset:
    """Say where the copies lie, all of them. Writes down what is; moves no data. `uris`: None leaves them."""
    _require_may_operate(actor)
    dataset = _locked(dataset_id)
    domains = _storage_named(at_domains)
    known = dict(Copy.objects.filter(dataset=dataset).values_list("domain__name", "uri"))
    addresses = known if uris is None else _addresses(domains, uris)
    wanted = {domain.name: addresses.get(domain.name, "") for domain in domains}
    if wanted == known:
        return dataset
    Copy.objects.filter(dataset=dataset).exclude(domain__in=domains).delete()
    for domain in domains:
        Copy.objects.update_or_create(dataset=dataset, domain=domain, defaults={"uri": wanted[domain.name]})
    _record(
        "dataset.copies_set",
        dataset,
        actor=actor,
        at=at,
        is_audit=True,
        before={"at": sorted(known)},
        after={"at": sorted(wanted)},
    )
    return dataset


@transaction.atomic
def delete_dataset(*, dataset_id: int, actor: User | None, at: datetime) -> None:
    """Forget a data set and its copies; refused while one is on its way."""
    _require_may_operate(actor)
    dataset = _locked(dataset_id)
    if Transfer.objects.filter(dataset=dataset, ended_at=None).exists():
        raise DatasetInUse(f"{dataset} is being copied just now.")
    pk, name = dataset.pk, dataset.name
    dataset.delete()
    dataset.pk, dataset.name = pk, name
    _record("dataset.deleted", dataset, actor=actor, at=at, is_audit=True)


# Transfers ----------------------------------------------------------------------------------------------------------


@transaction.atomic
def request_stage(
    *, dataset_id: int, to_domain_id: int, for_job_id: int | None, at: datetime
) -> Transfer | None:
    """Have a data set brought to a storage domain. Twice changes nothing.

    Returns:
        The transfer that is under way; None when there is a copy already, or when a transfer to there was given up so
        lately that it is not begun again by itself (`DatasetRow.rests_until_at`).
    """
    dataset = _locked(dataset_id)
    if Copy.objects.filter(dataset=dataset, domain_id=to_domain_id).exists():
        return None
    under_way = _under_way(dataset, to_domain_id)
    if under_way is not None:
        return under_way
    if selectors.rests_until(dataset_id, to_domain_id, at=at) is not None:
        return None
    return _note_transfer(dataset, to_domain_id, for_job_id=for_job_id, actor=None, at=at)


@transaction.atomic
def stage_by_hand(*, dataset_id: int, to_domain: str, actor: User | None, at: datetime) -> Transfer:
    """A person has it brought there, however lately that was given up. Under way already: that transfer.

    Raises:
        DatasetInUse: it has a copy there.
        NoRoute: nothing can bring it there.
    """
    _require_may_operate(actor)
    domain = _storage_named([to_domain], path="to")[0]
    dataset = _locked(dataset_id)
    if Copy.objects.filter(dataset=dataset, domain=domain).exists():
        raise DatasetInUse(f"{dataset} has a copy in {domain} already.")
    under_way = _under_way(dataset, domain.pk)
    if under_way is not None:
        return under_way
    route_to(dataset, domain)
    return _note_transfer(dataset, domain.pk, for_job_id=None, actor=actor, at=at)


@transaction.atomic
def start_transfer(
    *,
    dataset_id: int,
    to_domain_id: int,
    expected_end_at: datetime,
    at: datetime,
    for_job_id: int | None = None,
) -> Transfer:
    """Note that a copy is to be brought. One at a time: starting twice gives the transfer that is under way."""
    dataset = _locked(dataset_id)
    return _under_way(dataset, to_domain_id) or _note_transfer(
        dataset, to_domain_id, for_job_id=for_job_id, actor=None, at=at, expected_end_at=expected_end_at
    )


@transaction.atomic
def end_transfer(*, transfer_id: int, at: datetime, error: str = "", n_bytes: int | None = None) -> Transfer:
    """Note that a copy has arrived, or why it has not. Twice changes nothing.

    Args:
        n_bytes: What the copy was found to hold; the data set's size is corrected by it.
    """
    transfer = _locked_transfer(transfer_id)
    if transfer.ended_at is not None:
        return transfer
    transfer.ended_at, transfer.error = max(at, transfer.started_at), error
    transfer.next_attempt_at = None
    if not error and n_bytes is not None:
        transfer.bytes_done = transfer.bytes_total = n_bytes
    transfer.save(update_fields=["ended_at", "error", "next_attempt_at", "bytes_done", "bytes_total"])
    if not error:
        Copy.objects.get_or_create(
            dataset=transfer.dataset, domain_id=transfer.to_domain_id, defaults={"uri": transfer.target_uri}
        )
        if n_bytes is not None and not transfer.is_simulated:
            correct_size(dataset_id=transfer.dataset_id, n_bytes=n_bytes, at=at)
    data = _transfer_facts(transfer) | {"error": error, "attempts": transfer.attempts}
    _record("dataset.transfer_ended", transfer.dataset, actor=None, at=at, data=data)
    return transfer


@transaction.atomic
def cancel_transfer(*, transfer_id: int, actor: User | None, at: datetime) -> Transfer:
    """Ask for a transfer to be ended; what lies half-done is taken away. Twice, or after its end, changes nothing."""
    _require_may_operate(actor)
    transfer = _locked_transfer(transfer_id)
    if transfer.ended_at is not None or transfer.cancel_asked_at is not None:
        return transfer
    transfer.cancel_asked_at = at
    transfer.cancel_asked_by = "" if actor is None else actor.get_username()
    transfer.save(update_fields=["cancel_asked_at", "cancel_asked_by"])
    _record(
        "dataset.transfer_cancel_asked",
        transfer.dataset,
        actor=actor,
        at=at,
        is_audit=True,
        data=_transfer_facts(transfer),
    )
    return transfer


@transaction.atomic
def correct_size(*, dataset_id: int, n_bytes: int, at: datetime) -> None:
    """A data set was found to hold so many bytes."""
    dataset = _locked(dataset_id)
    if abs(dataset.size_gib * GIB - n_bytes) <= _SIZE_TOLERANCE_BYTES:
        return
    before, dataset.size_gib = dataset.size_gib, n_bytes / GIB
    dataset.save(update_fields=["size_gib"])
    _record(
        "dataset.size_corrected",
        dataset,
        actor=None,
        at=at,
        before={"size_gib": before},
        after={"size_gib": dataset.size_gib},
    )


def _under_way(dataset: Dataset, to_domain_id: int) -> Transfer | None:
    return Transfer.objects.filter(dataset=dataset, to_domain_id=to_domain_id, ended_at=None).first()


def _note_transfer(
    dataset: Dataset,
    to_domain_id: int,
    *,
    for_job_id: int | None,
    actor: User | None,
    at: datetime,
    expected_end_at: datetime | None = None,
) -> Transfer:
    domain = Domain.objects.filter(pk=to_domain_id, kind=DomainKind.STORAGE).first()
    if domain is None:
        raise NotFound("There is no such storage domain.")
    if expected_end_at is None:
        expected_end_at = at + duration(dataset.size_gib * GIB, _expected_rate(dataset, domain))
    transfer = Transfer.objects.create(
        dataset=dataset,
        to_domain=domain,
        for_job_id=for_job_id,
        started_at=at,
        expected_end_at=max(at, expected_end_at),
    )
    data = _transfer_facts(transfer) | {"expected_end_at": transfer.expected_end_at.isoformat()}
    _record("dataset.transfer_started", dataset, actor=actor, at=at, is_audit=actor is not None, data=data)
    return transfer


def _expected_rate(dataset: Dataset, domain: Domain) -> float:
    try:
        return route_to(dataset, domain).rate_gib_per_s
    except NoRoute:  # whoever carries it finds out, and says so
        return DEFAULT_RATE_GIB_PER_S


def _transfer_facts(transfer: Transfer) -> dict[str, Any]:
    return {
        "transfer_id": transfer.pk,
        "to_domain_id": transfer.to_domain_id,
        "for_job_id": transfer.for_job_id,
        "is_simulated": transfer.is_simulated,
    }


def _locked_transfer(transfer_id: int) -> Transfer:
    transfer = (
        Transfer.objects.select_for_update(of=("self",), no_key=True)
        .select_related("dataset")
        .filter(pk=transfer_id)
        .first()
    )
    if transfer is None:
        raise NotFound("There is no such transfer.")
    return transfer


# Stores -------------------------------------------------------------------------------------------------------------


@transaction.atomic
def create_store(
    *,
    domain: str,
    rate_gib_per_s: float,
    base_uri: str = "",
    profile: str = "",
    most_gib_per_s: float | None = None,
    is_simulated: bool = False,
    actor: User | None,
    at: datetime,
) -> Store:
    """Say what stands behind a storage domain.

    Args:
        base_uri: Copies lie right below it; within what the site allows (SWITCHYARD_STORE_ROOTS).
        profile: Name of the keys for an object store, as the environment of the service has it.
        most_gib_per_s: No transfer goes faster; None: no limit.
    """
    _require_may_operate(actor)
    store = Store(
        domain=_storage_named([domain], path="domain")[0],
        base_uri=base_uri,
        profile=profile,
        rate_gib_per_s=rate_gib_per_s,
        most_gib_per_s=most_gib_per_s,
        is_simulated=is_simulated,
    )
    _require_sense(store)
    try:
        with transaction.atomic():
            store.save(force_insert=True)
    except IntegrityError:
        raise StoreExists(store) from None
    _record_store("store.created", store, actor=actor, at=at, after=facts_of(store))
    return store


@transaction.atomic
def update_store(*, store_id: int, changes: Mapping[str, Any], actor: User | None, at: datetime) -> Store:
    """Change any of STORE_FIELDS. What is under way goes on as it was begun; another attempt goes by the new facts."""
    _require_may_operate(actor)
    store = _locked_store(store_id)
    before = facts_of(store)
    for name, value in changes.items():
        assert name in STORE_FIELDS, name
        setattr(store, name, value)
    after = facts_of(store)
    if after == before:
        return store
    _require_sense(store)
    store.save()
    _record_store("store.changed", store, actor=actor, at=at, before=before, after=after)
    return store


@transaction.atomic
def delete_store(*, store_id: int, actor: User | None, at: datetime) -> None:
    """Forget what stands behind a domain; nothing that lies there is touched. Refused while something is on its way."""
    _require_may_operate(actor)
    store = _locked_store(store_id)
    if Transfer.objects.filter(to_domain=store.domain, ended_at=None).exists():
        raise StoreInUse(f"Something is on its way to {store}.")
    pk = store.pk
    store.delete()
    store.pk = pk
    _record_store("store.deleted", store, actor=actor, at=at, before=facts_of(store))


def facts_of(store: Store) -> dict[str, Any]:
    return {name: getattr(store, name) for name in STORE_FIELDS}


def _require_sense(store: Store) -> None:
    if store.is_simulated:
        faults = [
            {
                "path": name,
                "code": "invalid",
                "message": "must be absent: nothing is carried to a simulated store",
            }
            for name in ("base_uri", "profile")
            if getattr(store, name)
        ]
        # Real jobs would begin without a byte of their data.
        real = Node.objects.filter(storage=store.domain).exclude(cluster__backend=Backend.SIMULATED)
        if real.exists():
            message = f"must be false: {store.domain} has nodes that really run jobs"
            faults.append({"path": "is_simulated", "code": "invalid", "message": message})
        if faults:
            raise InvalidInput(faults)
        return
    if not store.base_uri:
        raise InvalidInput.of("base_uri", "is required, but for a simulated store", "missing")
    try:
        place = parse(store.base_uri)
    except BadAddress as error:
        raise InvalidInput.of("base_uri", str(error)) from None
    roots = settings.SWITCHYARD_STORE_ROOTS
    if not any(place.is_within(parse(root)) for root in roots):
        # Who may name stores may not thereby read or fill every folder of the machine.
        raise InvalidInput.of("base_uri", "lies outside what this site allows (STORE_ROOTS)", "not_allowed")
    if store.profile and place.scheme != "s3":
        raise InvalidInput.of("profile", "is for object stores (s3://)")


def _locked_store(store_id: int) -> Store:
    store = (
        Store.objects.select_for_update(of=("self",), no_key=True)
        .select_related("domain")
        .filter(pk=store_id)
        .first()
    )
    if store is None:
        raise NotFound("There is no such store.")
    return store


def _record_store(kind: str, store: Store, *, actor: User | None, at: datetime, **facts: Any) -> None:
    record(
        kind,
        subject_kind="domain",
        subject_id=store.domain_id,
        subject_name=store.domain.name,
        actor=actor,
        at=at,
        is_audit=True,
        is_private=True,  # folders and buckets of the site
        **facts,
    )


def _addresses(domains: Sequence[Domain], uris: Mapping[str, str]) -> dict[str, str]:
    """The addresses of copies, each below the base of its domain's store."""
    stores = {
        store.domain.name: store
        for store in Store.objects.filter(domain__in=domains).select_related("domain")
    }
    names = {domain.name for domain in domains}
    faults = []
    for name, uri in uris.items():
        path = f"uris.{name}"
        if name not in names:
            faults.append({"path": path, "code": "unknown", "message": "is not one of the domains in `at`"})
        elif name not in stores or not stores[name].base_uri:
            faults.append(
                {"path": path, "code": "invalid", "message": "has no store that copies could lie in"}
            )
        else:
            try:
                require_within(uri, stores[name].base_uri)
            except BadAddress as error:
                faults.append({"path": path, "code": "invalid", "message": str(error)})
    if faults:
        raise InvalidInput(faults)
    return dict(uris)


def _storage_named(names: Sequence[str], path: str | None = None) -> list[Domain]:
    known = {domain.name: domain for domain in Domain.objects.filter(name__in=names, kind=DomainKind.STORAGE)}
    faults = [
        {"path": path or f"at[{index}]", "code": "unknown", "message": "is not a storage domain here"}
        for index, name in enumerate(names)
        if name not in known
    ]
    if faults:
        raise InvalidInput(faults)
    return [known[name] for name in names]


def _locked(dataset_id: int) -> Dataset:
    dataset = Dataset.objects.select_for_update(no_key=True).filter(pk=dataset_id).first()
    if dataset is None:
        raise NotFound("There is no such data set.")
    return dataset


def _record(
    kind: str,
    dataset: Dataset,
    *,
    actor: User | None,
    at: datetime,
    is_audit: bool = False,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    record(
        kind,
        subject_kind="dataset",
        subject_id=dataset.pk,
        subject_name=dataset.name,
        actor=actor,
        at=at,
        is_audit=is_audit,
        before=before,
        after=after,
        data=data,
    )


def _require_may_operate(actor: User | None) -> None:
    if actor is not None:
        policies.require_may_operate(actor)
