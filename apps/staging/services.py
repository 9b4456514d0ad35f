"""Naming data sets, where their copies lie, and transfers under way. An actor of None is the site itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from apps.core.errors import DomainError, InvalidInput, NameTaken, NotFound
from apps.events.services import record
from apps.inventory.models import Domain, DomainKind
from apps.staging.models import Copy, Dataset, Transfer
from apps.teams import policies
from apps.teams.models import User


class DatasetInUse(DomainError):
    code = "dataset_in_use"


@transaction.atomic
def create_dataset(
    *, name: str, size_gib: float, at_domains: Sequence[str] = (), actor: User | None, at: datetime
) -> Dataset:
    """A data set, and the storage domains that hold a copy already."""
    _require_may_operate(actor)
    domains = _storage_named(at_domains)
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(name=name, size_gib=size_gib)
    except IntegrityError:
        raise NameTaken("data set", name) from None
    Copy.objects.bulk_create([Copy(dataset=dataset, domain=domain) for domain in domains])
    after = {"size_gib": size_gib, "at": sorted(at_domains)}
    _record("dataset.created", dataset, actor=actor, at=at, is_audit=True, after=after)
    return dataset


@transaction.atomic
def set_copies(*, dataset_id: int, at_domains: Sequence[str], actor: User | None, at: datetime) -> Dataset:
    """Say where the copies lie, all of them. Writes down what is; moves no data."""
    _require_may_operate(actor)
    dataset = _locked(dataset_id)
    domains = _storage_named(at_domains)
    before = sorted(Copy.objects.filter(dataset=dataset).values_list("domain__name", flat=True))
    if before == sorted(at_domains):
        return dataset
    Copy.objects.filter(dataset=dataset).exclude(domain__in=domains).delete()
    Copy.objects.bulk_create(
        [Copy(dataset=dataset, domain=domain) for domain in domains], ignore_conflicts=True
    )
    _record(
        "dataset.copies_set",
        dataset,
        actor=actor,
        at=at,
        is_audit=True,
        before={"at": before},
        after={"at": sorted(at_domains)},
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


@transaction.atomic
def start_transfer(
    *, dataset_id: int, to_domain_id: int, expected_end_at: datetime, at: datetime
) -> Transfer:
    """Note that a copy is on its way. One at a time: starting twice gives the transfer that is under way."""
    dataset = _locked(dataset_id)
    under_way = Transfer.objects.filter(dataset=dataset, to_domain_id=to_domain_id, ended_at=None).first()
    if under_way is not None:
        return under_way
    transfer = Transfer.objects.create(
        dataset=dataset, to_domain_id=to_domain_id, started_at=at, expected_end_at=max(at, expected_end_at)
    )
    _record("dataset.transfer_started", dataset, actor=None, at=at, data=_transfer_facts(transfer))
    return transfer


@transaction.atomic
def end_transfer(*, transfer_id: int, at: datetime, error: str = "") -> Transfer:
    """Note that a copy has arrived, or why it has not. Twice changes nothing."""
    transfer = (
        Transfer.objects.select_for_update(of=("self",), no_key=True)
        .select_related("dataset")
        .filter(pk=transfer_id)
        .first()
    )
    if transfer is None:
        raise NotFound("There is no such transfer.")
    if transfer.ended_at is not None:
        return transfer
    transfer.ended_at, transfer.error = at, error
    transfer.save(update_fields=["ended_at", "error"])
    if not error:
        Copy.objects.get_or_create(dataset=transfer.dataset, domain_id=transfer.to_domain_id)
    data = _transfer_facts(transfer) | {"error": error}
    _record("dataset.transfer_ended", transfer.dataset, actor=None, at=at, data=data)
    return transfer


def _transfer_facts(transfer: Transfer) -> dict[str, Any]:
    return {"transfer_id": transfer.pk, "to_domain_id": transfer.to_domain_id}


def _storage_named(names: Sequence[str]) -> list[Domain]:
    known = {domain.name: domain for domain in Domain.objects.filter(name__in=names, kind=DomainKind.STORAGE)}
    faults = [
        {"path": f"at[{index}]", "code": "unknown", "message": "is not a storage domain here"}
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
