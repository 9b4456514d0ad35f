"""The engines that a cluster can be connected to: what each asks for, and how it is tried, saved and looked at.

One entry an engine; pages and REST know no engine by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from apps.core.errors import InvalidInput, NotFound
from apps.core.sealing import Unreadable
from apps.core.strict import AddressName, faults_of
from apps.execution.backends.base import Survey
from apps.execution.connections import (
    Connected,
    KubernetesDraft,
    SlurmDraft,
    change_kubernetes,
    change_slurm,
    connect_kubernetes,
    connect_slurm,
    sync_kubernetes,
    sync_slurm,
    try_kubernetes,
    try_slurm,
)
from apps.execution.kubernetes_models import KubernetesConnection
from apps.execution.slurm_models import SlurmConnection, SlurmCredential
from apps.inventory.models import Backend, Cluster
from apps.teams import policies
from apps.teams.models import User

_NAME: Final = TypeAdapter[str](AddressName)
_UNREADABLE: Final = "must be entered again: what is stored cannot be opened"
LONGEST: Final = 20_000  # characters of a field: a certificate is long


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that is asked for.

    Attributes:
        is_secret: Never shown again; left out it is the one that is stored.
        kind: How it is entered.
        choices: (value, what it means).
        longest: In characters.
    """

    name: str
    label: str
    hint: str = ""
    is_required: bool = True
    is_secret: bool = False
    kind: Literal["line", "text", "choice"] = "line"
    choices: tuple[tuple[str, str], ...] = ()
    default: str = ""
    longest: int = 500


@dataclass(frozen=True, slots=True)
class Engine:
    """What can be done with one.

    Attributes:
        try_: Asks it all that running there needs, and changes nothing.
        told: What is stored of a cluster's connection, by field, without secrets; None: nothing is.
    """

    key: str
    label: str
    fields: tuple[Field, ...]
    try_: Callable[[Mapping[str, str], Cluster | None], Survey]
    connect: Callable[[str, Mapping[str, str], User, datetime], Connected]
    change: Callable[[Cluster, Mapping[str, str], User, datetime], Connected]
    sync: Callable[[Cluster, User, datetime], Connected]
    told: Callable[[Cluster], Mapping[str, str] | None]

    def checked(self, given: Mapping[str, Any], *, has_secret: bool) -> dict[str, str]:
        """Values for every field; raises InvalidInput, which names each that is at fault.

        Args:
            has_secret: One is stored: it may be left out.
        """
        faults: list[tuple[str, str, str]] = []
        values: dict[str, str] = {}
        known = {field.name for field in self.fields}
        faults += [
            (name, "unknown_field", "is no field of this engine") for name in given if name not in known
        ]
        for field in self.fields:
            value = given.get(field.name, field.default)
            if not isinstance(value, str):
                faults.append((field.name, "wrong_type", "must be text"))
                continue
            value = value.strip()
            may_be_empty = not field.is_required or (field.is_secret and has_secret)
            if "\x00" in value or len(value) > field.longest:
                faults.append((field.name, "invalid", f"must be text of {field.longest} characters at most"))
            elif not value and not may_be_empty:
                faults.append((field.name, "required", "must not be empty"))
            elif value and field.choices and value not in {choice for choice, _ in field.choices}:
                told = ", ".join(choice for choice, _ in field.choices)
                faults.append((field.name, "not_a_choice", f"must be one of {told}"))
            values[field.name] = value
        if faults:
            raise InvalidInput([{"path": path, "code": code, "message": said} for path, code, said in faults])
        return values


# Slurm ---------------------------------------------------------------------------------------------------------------


def _slurm_draft(values: Mapping[str, str], cluster: Cluster | None) -> SlurmDraft:
    draft = SlurmDraft(**values)
    if not draft.secret and cluster is not None:
        stored = _slurm_of(cluster)
        if (stored.rest_url, stored.credential) != (draft.rest_url, draft.credential):
            # Whoever names another address is not handed what opens this one.
            raise InvalidInput.of(
                "secret", "must be entered again for another address or credential", "required"
            )
        try:
            draft = replace(draft, secret=stored.secret)
        except Unreadable:
            raise InvalidInput.of("secret", _UNREADABLE, "required") from None
    return draft


def _slurm_of(cluster: Cluster) -> SlurmConnection:
    found = SlurmConnection.objects.filter(cluster=cluster).first()
    if found is None:
        raise NotFound("Nobody said how this cluster is reached.")
    return found


def _slurm_told(cluster: Cluster) -> Mapping[str, str] | None:
    found = SlurmConnection.objects.filter(cluster=cluster).first()
    if found is None:
        return None
    names = ("rest_url", "user_name", "credential", "partition", "shared_dir", "slurm_conf")
    return {name: str(getattr(found, name)) for name in names}


_SLURM: Final = Engine(
    key=Backend.SLURM.value,
    label="Slurm",
    fields=(
        Field("rest_url", "Address of slurmrestd", "Such as http://slurm.example:6820."),
        Field(
            "user_name",
            "User",
            "Whose jobs they are in Slurm; an operator of it, to pin and to drain.",
            longest=64,
        ),
        Field(
            "credential",
            "Credential",
            kind="choice",
            choices=tuple((value, str(label)) for value, label in SlurmCredential.choices),
            default=SlurmCredential.KEY.value,
        ),
        Field(
            "secret",
            "Key or token",
            "A key in base64, as printed by: base64 -w0 jwt_hs256.key",
            is_secret=True,
            longest=LONGEST,
        ),
        Field("shared_dir", "Shared folder", "Seen by the site and by every node, by the same path."),
        Field("partition", "Partition", "Empty: Slurm's default.", is_required=False, longest=120),
        Field("slurm_conf", "slurm.conf", "Of the commands; empty: Slurm's own.", is_required=False),
        Field(
            "accelerator",
            "Devices are",
            "Those that Slurm has no one type for, such as H100.",
            is_required=False,
        ),
    ),
    try_=lambda values, cluster: try_slurm(_slurm_draft(values, cluster)),
    connect=lambda name, values, actor, at: connect_slurm(
        name=name, draft=_slurm_draft(values, None), actor=actor, at=at
    ),
    change=lambda cluster, values, actor, at: change_slurm(
        cluster=cluster, draft=_slurm_draft(values, cluster), actor=actor, at=at
    ),
    sync=lambda cluster, actor, at: sync_slurm(cluster=cluster, actor=actor, at=at),
    told=_slurm_told,
)

# Kubernetes ----------------------------------------------------------------------------------------------------------


def _kubernetes_draft(values: Mapping[str, str], cluster: Cluster | None) -> KubernetesDraft:
    plain = {name: value for name, value in values.items() if name != "labels"}
    draft = KubernetesDraft(**plain, labels=_labels_of(values["labels"]))
    if draft.token or cluster is None:
        return draft
    stored = _kubernetes_of(cluster)
    if stored is None:
        raise NotFound("Nobody said how this cluster is reached.")
    if (stored.api_url, stored.ca_pem) != (draft.api_url, draft.ca_pem):
        raise InvalidInput.of(
            "token", "must be entered again for another address or another authority", "required"
        )
    try:
        return replace(draft, token=stored.token)
    except Unreadable:
        raise InvalidInput.of("token", _UNREADABLE, "required") from None


def _labels_of(text: str) -> dict[str, list[str]]:
    """Lines such as `leaf = first.example/leaf, second.example/leaf`."""
    labels: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        what, sign, keys = line.partition("=")
        found = [key.strip() for key in keys.split(",") if key.strip()]
        if not sign or not found:
            raise InvalidInput.of("labels", f"must say what = key, key, ... in each line, not {line[:60]}")
        labels[what.strip()] = found
    return labels


def _kubernetes_of(cluster: Cluster) -> KubernetesConnection | None:
    return KubernetesConnection.objects.filter(cluster=cluster).first()


def _kubernetes_told(cluster: Cluster) -> Mapping[str, str] | None:
    found = _kubernetes_of(cluster)
    if found is None:
        return None
    labels = "\n".join(f"{what} = {', '.join(keys)}" for what, keys in found.labels.items())
    names = ("api_url", "namespace", "image", "ca_pem", "resource")
    return {**{name: str(getattr(found, name)) for name in names}, "labels": labels}


_KUBERNETES: Final = Engine(
    key=Backend.KUBERNETES.value,
    label="Kubernetes",
    fields=(
        Field("api_url", "Address of the API", "Such as https://10.0.0.1:6443."),
        Field("namespace", "Namespace", "Where our Jobs live; nobody else's should.", longest=63),
        Field(
            "token",
            "Token",
            "Of a ServiceAccount with the rights of the manifest.",
            is_secret=True,
            longest=LONGEST,
        ),
        Field("image", "Image", "What jobs run in; it has /bin/sh."),
        Field("resource", "Devices are called", default="nvidia.com/gpu", longest=120),
        Field(
            "accelerator", "Devices are", "Where no label says, such as H100.", is_required=False, longest=120
        ),
        Field(
            "ca_pem",
            "Certificate of the authority",
            "PEM. Empty: whom this machine believes.",
            is_required=False,
            kind="text",
            longest=LONGEST,
        ),
        Field(
            "labels",
            "Labels of nodes",
            "A line each for accelerator, leaf and spine: leaf = key, another key. Empty: the usual ones.",
            is_required=False,
            kind="text",
            longest=2000,
        ),
    ),
    try_=lambda values, cluster: try_kubernetes(_kubernetes_draft(values, cluster)),
    connect=lambda name, values, actor, at: connect_kubernetes(
        name=name, draft=_kubernetes_draft(values, None), actor=actor, at=at
    ),
    change=lambda cluster, values, actor, at: change_kubernetes(
        cluster=cluster, draft=_kubernetes_draft(values, cluster), actor=actor, at=at
    ),
    sync=lambda cluster, actor, at: sync_kubernetes(cluster=cluster, actor=actor, at=at),
    told=_kubernetes_told,
)

ENGINES: Final[Mapping[str, Engine]] = {engine.key: engine for engine in (_SLURM, _KUBERNETES)}


def engine_named(key: str) -> Engine:
    """An engine by its key; raises InvalidInput."""
    found = ENGINES.get(key)
    if found is None:
        raise InvalidInput.of("backend", f"must be one of {', '.join(ENGINES)}", "not_a_choice")
    return found


def engine_of(cluster: Cluster) -> Engine:
    """The engine of a cluster; raises NotFound for one that is not connected to anything."""
    found = ENGINES.get(cluster.backend)
    if found is None:
        raise NotFound(f"A cluster of kind {cluster.backend} is connected to nothing outside.")
    return found


def try_connection(key: str, given: Mapping[str, Any], *, cluster: Cluster | None, actor: User) -> Survey:
    """Ask an engine everything, and change nothing. `cluster` is the one that is to be reached in another way."""
    policies.require_admin(actor)
    engine = engine_named(key)
    return engine.try_(engine.checked(given, has_secret=cluster is not None), cluster)


def connect(name: str, key: str, given: Mapping[str, Any], *, actor: User, at: datetime) -> Connected:
    """A new cluster. Nothing is saved unless it answers; secrets are sealed. Raises InvalidInput, OutsideError."""
    policies.require_admin(actor)
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        raise InvalidInput([{**one, "path": "name"} for one in faults_of(error)]) from None
    engine = engine_named(key)
    return engine.connect(name, engine.checked(given, has_secret=False), actor, at)


def change(cluster: Cluster, given: Mapping[str, Any], *, actor: User, at: datetime) -> Connected:
    """Reach a cluster in another way, if it answers there. Raises InvalidInput, OutsideError."""
    policies.require_admin(actor)
    engine = engine_of(cluster)
    return engine.change(cluster, engine.checked(given, has_secret=True), actor, at)


def sync(cluster: Cluster, *, actor: User, at: datetime) -> Connected:
    """Look at a cluster now. Raises OutsideError."""
    policies.require_may_operate(actor)
    return engine_of(cluster).sync(cluster, actor, at)
