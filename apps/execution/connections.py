"""Connecting a Slurm or a Kubernetes: what is entered is tried before anything is saved, and nodes are taken in."""

import base64
import binascii
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import transaction

from apps.core import clock
from apps.core.errors import InvalidInput, NameTaken
from apps.events.services import record
from apps.execution import surveying
from apps.execution.backends.base import Survey
from apps.execution.backends.choice import kubernetes_place_of, slurm_place_of
from apps.execution.backends.kubernetes.backend import KubernetesBackend
from apps.execution.backends.kubernetes.backend import Place as KubernetesPlace
from apps.execution.backends.kubernetes.wire import Address as KubernetesAddress
from apps.execution.backends.slurm.backend import Place, SlurmBackend
from apps.execution.backends.slurm.wire import Address, Wire
from apps.execution.kubernetes_models import (
    DEFAULT_LABELS,
    KubernetesConnection,
    KubernetesRun,
    default_labels,
    seal_token,
)
from apps.execution.slurm_models import SlurmConnection, SlurmCredential, SlurmRun, new_mark, seal
from apps.inventory import services as inventory
from apps.inventory.models import Backend, Cluster
from apps.teams import policies
from apps.teams.models import User


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmDraft:
    """A connection as somebody enters it.

    Attributes:
        secret: The key in base64, or a token, as `credential` says.
        accelerator: What devices are called that Slurm has no one type for.
    """

    rest_url: str
    user_name: str
    secret: str
    shared_dir: str
    credential: str = SlurmCredential.KEY
    partition: str = ""
    slurm_conf: str = ""
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Connected:
    """What became of it."""

    cluster: Cluster
    version: str  # of Slurm
    n_nodes: int  # taken in
    notes: tuple[str, ...]  # what was passed over


def try_slurm(draft: SlurmDraft) -> Survey:
    """Ask a Slurm all that running on it needs, and change nothing.

    Raises:
        InvalidInput: for what cannot be meant.
        OutsideError: if it does not answer, or the credential does not open it.
    """
    return _backend_of(draft).survey(at=clock.now())


def connect_slurm(*, name: str, draft: SlurmDraft, actor: User | None, at: datetime) -> Connected:
    """A new cluster behind a Slurm, with its nodes. Nothing is saved unless it answers; the credential is sealed.

    Raises:
        InvalidInput, NameTaken: for what cannot be meant.
        OutsideError: if Slurm does not answer, or the credential does not open it.
    """
    _require_new(name, actor)
    survey = try_slurm(draft)

    def keep(cluster: Cluster) -> None:
        SlurmConnection.objects.create(
            cluster=cluster,
            rest_url=draft.rest_url,
            user_name=draft.user_name,
            credential=draft.credential,
            sealed_secret=seal(draft.secret),
            partition=draft.partition,
            shared_dir=draft.shared_dir,
            slurm_conf=draft.slurm_conf,
        )

    told = {"rest_url": draft.rest_url, "user_name": draft.user_name}
    return _connect(
        name, Backend.SLURM, survey, keep, told=told, accelerator=draft.accelerator, actor=actor, at=at
    )


def change_slurm(*, cluster: Cluster, draft: SlurmDraft, actor: User | None, at: datetime) -> Connected:
    """Reach the same Slurm in another way. Its runs are found again by the mark, which stays."""
    if actor is not None:
        policies.require_admin(actor)
    survey = try_slurm(draft)

    def keep() -> dict[str, str]:
        found = SlurmConnection.objects.select_for_update().get(cluster=cluster)
        before = {"rest_url": found.rest_url, "user_name": found.user_name}
        open_runs = SlurmRun.objects.filter(cluster=cluster, ended_at=None)
        if not _is_one_folder(draft.shared_dir, found.shared_dir) and open_runs.exists():
            # It tells whether a run began and how it ended: without that a run that is over would be run again.
            raise InvalidInput.of("shared_dir", "must stay while jobs run that write to it")
        for name in ("rest_url", "user_name", "credential", "partition", "shared_dir", "slurm_conf"):
            setattr(found, name, getattr(draft, name))
        found.sealed_secret = seal(draft.secret)
        found.save()
        return before

    told = {"rest_url": draft.rest_url, "user_name": draft.user_name}
    return _change(cluster, survey, keep, told=told, accelerator=draft.accelerator, actor=actor, at=at)


def sync_slurm(*, cluster: Cluster, accelerator: str = "", actor: User | None, at: datetime) -> Connected:
    """Look at a Slurm now: nodes that are new there are taken in, drains, losses and others' jobs are seen."""
    if actor is not None:
        policies.require_may_operate(actor)
    return _sync(cluster, SlurmBackend(slurm_place_of(cluster)), accelerator=accelerator, at=at)


# Kubernetes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesDraft:
    """A connection as somebody enters it.

    Attributes:
        token: Of a ServiceAccount.
        ca_pem: Whom to believe; empty: whom this machine believes.
        labels: Keys of node labels by what they tell, from near to far; what is not named stays as it is by default.
        accelerator: What devices are called on nodes whose labels do not say.
    """

    api_url: str
    token: str
    namespace: str
    image: str
    ca_pem: str = ""
    resource: str = "nvidia.com/gpu"
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    accelerator: str = ""


def try_kubernetes(draft: KubernetesDraft) -> Survey:
    """Ask a Kubernetes all that running on it needs, and change nothing.

    Raises:
        InvalidInput: for what cannot be meant.
        OutsideError: if it does not answer, or the token does not open it.
    """
    if not draft.api_url.startswith(("http://", "https://")):
        raise InvalidInput.of("api_url", "must begin with http:// or https://")
    for name in ("token", "namespace", "image", "resource"):
        if not getattr(draft, name):
            raise InvalidInput.of(name, "must not be empty")
    unknown = set(draft.labels) - set(DEFAULT_LABELS)
    if unknown:
        raise InvalidInput.of("labels", f"must be of {', '.join(DEFAULT_LABELS)}", "not_a_choice")
    address = KubernetesAddress(
        api_url=draft.api_url, token=draft.token, namespace=draft.namespace, ca_pem=draft.ca_pem
    )
    return KubernetesBackend(
        # Nothing was ever created under this mark, so that whatever runs there counts as others'.
        KubernetesPlace(
            cluster_id=0,
            address=address,
            mark=new_mark(),
            image=draft.image,
            resource=draft.resource,
            labels=_labels_of(draft),
        )
    ).survey(at=clock.now())


def connect_kubernetes(*, name: str, draft: KubernetesDraft, actor: User | None, at: datetime) -> Connected:
    """A new cluster behind a Kubernetes, with its nodes. Nothing is saved unless it answers; the token is sealed.

    Raises:
        InvalidInput, NameTaken: for what cannot be meant.
        OutsideError: if it does not answer, or the token does not open it.
    """
    _require_new(name, actor)
    survey = try_kubernetes(draft)

    def keep(cluster: Cluster) -> None:
        KubernetesConnection.objects.create(cluster=cluster, **_columns(draft))

    told = {"api_url": draft.api_url, "namespace": draft.namespace}
    return _connect(
        name, Backend.KUBERNETES, survey, keep, told=told, accelerator=draft.accelerator, actor=actor, at=at
    )


def change_kubernetes(
    *, cluster: Cluster, draft: KubernetesDraft, actor: User | None, at: datetime
) -> Connected:
    """Reach the same Kubernetes in another way. Its runs are found again by the mark, which stays."""
    if actor is not None:
        policies.require_admin(actor)
    survey = try_kubernetes(draft)

    def keep() -> dict[str, str]:
        found = KubernetesConnection.objects.select_for_update().get(cluster=cluster)
        before = {"api_url": found.api_url, "namespace": found.namespace}
        open_runs = KubernetesRun.objects.filter(cluster=cluster, ended_at=None)
        if draft.namespace != found.namespace and open_runs.exists():
            raise InvalidInput.of("namespace", "must stay while jobs run in it")
        for name, value in _columns(draft).items():
            setattr(found, name, value)
        found.save()
        return before

    told = {"api_url": draft.api_url, "namespace": draft.namespace}
    return _change(cluster, survey, keep, told=told, accelerator=draft.accelerator, actor=actor, at=at)


def sync_kubernetes(
    *, cluster: Cluster, accelerator: str = "", actor: User | None, at: datetime
) -> Connected:
    """Look at a Kubernetes now: nodes that are new there are taken in, cordons, losses and others' pods are seen."""
    if actor is not None:
        policies.require_may_operate(actor)
    return _sync(cluster, KubernetesBackend(kubernetes_place_of(cluster)), accelerator=accelerator, at=at)


def _columns(draft: KubernetesDraft) -> dict[str, Any]:
    return {
        "api_url": draft.api_url,
        "sealed_token": seal_token(draft.token),
        "ca_pem": draft.ca_pem,
        "namespace": draft.namespace,
        "image": draft.image,
        "resource": draft.resource,
        "labels": _labels_of(draft),
    }


def _labels_of(draft: KubernetesDraft) -> dict[str, list[str]]:
    return default_labels() | {kind: list(keys) for kind, keys in draft.labels.items()}


# What both do ------------------------------------------------------------------------------------------------------


def _require_new(name: str, actor: User | None) -> None:
    if actor is not None:
        policies.require_admin(actor)
    if Cluster.objects.filter(name=name).exists():
        raise NameTaken("cluster", name)


def _connect(
    name: str,
    kind: Backend,
    survey: Survey,
    keep: Callable[[Cluster], None],
    *,
    told: Mapping[str, str],
    accelerator: str,
    actor: User | None,
    at: datetime,
) -> Connected:
    with transaction.atomic():
        cluster = inventory.create_cluster(name=name, backend=kind, actor=actor, at=at)
        keep(cluster)
        notes = surveying.take_facility(cluster, survey, at=at, accelerator=accelerator)
        n_nodes = cluster.nodes.count()
        record(
            "cluster.connected",
            subject_kind="cluster",
            subject_id=cluster.pk,
            subject_name=cluster.name,
            actor=actor,
            at=at,
            is_audit=True,
            after={**told, "n_nodes": n_nodes},
        )
    return Connected(cluster, survey.version, n_nodes, tuple(notes))


def _change(
    cluster: Cluster,
    survey: Survey,
    keep: Callable[[], Mapping[str, str]],
    *,
    told: Mapping[str, str],
    accelerator: str,
    actor: User | None,
    at: datetime,
) -> Connected:
    with transaction.atomic():
        before = keep()
        n_before = cluster.nodes.count()
        notes = surveying.take_facility(cluster, survey, at=at, accelerator=accelerator)
        record(
            "cluster.connection_changed",
            subject_kind="cluster",
            subject_id=cluster.pk,
            subject_name=cluster.name,
            actor=actor,
            at=at,
            is_audit=True,
            before=dict(before),
            after=dict(told),
        )
    return Connected(cluster, survey.version, cluster.nodes.count() - n_before, tuple(notes))


def _sync(
    cluster: Cluster, backend: SlurmBackend | KubernetesBackend, *, accelerator: str, at: datetime
) -> Connected:
    survey = backend.survey(at=at)
    with transaction.atomic():
        n_before = cluster.nodes.count()
        notes = surveying.take_facility(cluster, survey, at=at, accelerator=accelerator)
    surveying.take_survey(cluster, backend, survey, at=at)
    return Connected(cluster, survey.version, cluster.nodes.count() - n_before, tuple(notes))


# Slurm, tried ------------------------------------------------------------------------------------------------------


def _backend_of(draft: SlurmDraft) -> SlurmBackend:
    if not draft.rest_url.startswith(("http://", "https://")):
        raise InvalidInput.of("rest_url", "must begin with http:// or https://")
    if not draft.user_name:
        raise InvalidInput.of("user_name", "must not be empty")
    _require_shared(draft.shared_dir)
    address = Address(
        rest_url=draft.rest_url,
        user_name=draft.user_name,
        key=_key_of(draft) if draft.credential == SlurmCredential.KEY else None,
        token=draft.secret if draft.credential == SlurmCredential.TOKEN else "",
        slurm_conf=draft.slurm_conf,
    )
    wire = Wire(address)
    try:
        wire.ping()
        partitions = wire.partitions()
    finally:
        wire.close()
    if draft.partition and draft.partition not in partitions:
        raise InvalidInput.of("partition", f"must be one of {', '.join(partitions)}", "not_a_choice")
    return SlurmBackend(
        # Nothing was ever submitted under this mark, so that whatever runs there counts as others'.
        Place(cluster_id=0, address=address, shared_dir=Path(draft.shared_dir), mark=new_mark())
    )


def _key_of(draft: SlurmDraft) -> bytes:
    try:
        key = base64.b64decode(draft.secret, validate=True)
    except binascii.Error:
        raise InvalidInput.of("secret", "must be the key in base64") from None
    if len(key) < 16:
        raise InvalidInput.of("secret", "must be the whole key: it has fewer than 16 bytes")
    return key


def _is_one_folder(one: str, other: str) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False


def _require_shared(folder: str) -> None:
    if not folder.startswith("/") or not os.path.isdir(folder):
        raise InvalidInput.of("shared_dir", "must be a folder that the site sees, by its whole path")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput.of("shared_dir", f"cannot be written to: {error.strerror}") from None
