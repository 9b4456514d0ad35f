"""Connecting a Slurm: what is entered is tried before anything is saved, and its nodes are taken into the facility."""

import base64
import binascii
import os
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.db import transaction

from apps.core import clock
from apps.core.errors import InvalidInput, NameTaken
from apps.events.services import record
from apps.execution import surveying
from apps.execution.backends.base import Survey
from apps.execution.backends.choice import slurm_place_of
from apps.execution.backends.slurm.backend import Place, SlurmBackend
from apps.execution.backends.slurm.wire import Address, Wire
from apps.execution.slurm_models import SlurmConnection, SlurmCredential, new_mark, seal
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
    if actor is not None:
        policies.require_admin(actor)
    if Cluster.objects.filter(name=name).exists():
        raise NameTaken("cluster", name)
    survey = try_slurm(draft)
    with transaction.atomic():
        cluster = inventory.create_cluster(name=name, backend=Backend.SLURM, actor=actor, at=at)
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
        notes = surveying.take_facility(cluster, survey, at=at, accelerator=draft.accelerator)
        n_nodes = cluster.nodes.count()
        record(
            "cluster.connected",
            subject_kind="cluster",
            subject_id=cluster.pk,
            subject_name=cluster.name,
            actor=actor,
            at=at,
            is_audit=True,
            after={"rest_url": draft.rest_url, "user_name": draft.user_name, "n_nodes": n_nodes},
        )
    return Connected(cluster, survey.version, n_nodes, tuple(notes))


def change_slurm(*, cluster: Cluster, draft: SlurmDraft, actor: User | None, at: datetime) -> Connected:
    """Reach the same Slurm in another way. Its runs are found again by the mark, which stays."""
    if actor is not None:
        policies.require_admin(actor)
    survey = try_slurm(draft)
    with transaction.atomic():
        found = SlurmConnection.objects.select_for_update().get(cluster=cluster)
        before = {"rest_url": found.rest_url, "user_name": found.user_name}
        for name in ("rest_url", "user_name", "credential", "partition", "shared_dir", "slurm_conf"):
            setattr(found, name, getattr(draft, name))
        found.sealed_secret = seal(draft.secret)
        found.save()
        n_before = cluster.nodes.count()
        notes = surveying.take_facility(cluster, survey, at=at, accelerator=draft.accelerator)
        record(
            "cluster.connection_changed",
            subject_kind="cluster",
            subject_id=cluster.pk,
            subject_name=cluster.name,
            actor=actor,
            at=at,
            is_audit=True,
            before=before,
            after={"rest_url": draft.rest_url, "user_name": draft.user_name},
        )
    return Connected(cluster, survey.version, cluster.nodes.count() - n_before, tuple(notes))


def sync_slurm(*, cluster: Cluster, accelerator: str = "", actor: User | None, at: datetime) -> Connected:
    """Look at a Slurm now: nodes that are new there are taken in, drains, losses and others' jobs are seen."""
    if actor is not None:
        policies.require_may_operate(actor)
    backend = SlurmBackend(slurm_place_of(cluster))
    survey = backend.survey(at=at)
    with transaction.atomic():
        before = cluster.nodes.count()
        notes = surveying.take_facility(cluster, survey, at=at, accelerator=accelerator)
    surveying.take_survey(cluster, backend, survey, at=at)
    return Connected(cluster, survey.version, cluster.nodes.count() - before, tuple(notes))


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


def _require_shared(folder: str) -> None:
    if not folder.startswith("/") or not os.path.isdir(folder):
        raise InvalidInput.of("shared_dir", "must be a folder that the site sees, by its whole path")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput.of("shared_dir", f"cannot be written to: {error.strerror}") from None
