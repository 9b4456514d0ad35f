"""What a job asks for, in the few words a row has room for."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from apps.dashboard.templatetags.formats import count, devices
from apps.jobs.models import Job

_DOMAIN_WORDS: Final = {"scale_up": "one node", "leaf": "one leaf", "spine": "one spine group"}


@dataclass(frozen=True)
class Asks:
    """How much, of which kind, and in which shape."""

    n_devices: Decimal
    kinds: str
    shape: str
    topology: str


def asks_of(job: Job) -> Asks:
    spec: Mapping[str, Any] = job.spec
    groups: list[Mapping[str, Any]] = list(spec.get("groups") or [spec])
    kinds = list(dict.fromkeys(kind for group in groups for kind in group.get("accelerators") or ()))
    wanted = [_topology(group.get("topology") or {}) for group in groups]
    return Asks(
        n_devices=job.n_devices,
        kinds=" or ".join(kinds[:3]) if kinds else "device" if job.n_devices == 1 else "devices",
        shape=" + ".join(_shape(group, is_named="groups" in spec) for group in groups[:3]),
        topology=next((words for words in wanted if words), ""),
    )


def _shape(group: Mapping[str, Any], *, is_named: bool) -> str:
    replicas = group.get("replicas", 1)
    if isinstance(replicas, Mapping):
        n_replicas = f"{count(replicas['min'])}–{count(replicas['max'])}"
    else:
        n_replicas = count(replicas)
    name = f"{group['name']} " if is_named else ""
    return f"{name}{n_replicas} × {devices(group.get('devices', 1))}"


def _topology(topology: Mapping[str, Any]) -> str:
    if kind := topology.get("required"):
        return _DOMAIN_WORDS.get(str(kind), str(kind))
    if kind := topology.get("preferred"):
        return f"{_DOMAIN_WORDS.get(str(kind), str(kind))} if possible"
    return ""
