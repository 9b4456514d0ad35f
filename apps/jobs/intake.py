"""From what a team asks for to the rows that keep it, and back."""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from apps.jobs.spec import JobRequest, shape_key

PRIVATE = ("command", "script", "env", "workdir")
_MOST_DEVICES = Decimal(10) ** 9


def public_spec(request: JobRequest) -> dict[str, Any]:
    """The request as everybody who sees the job may see it; reads back as a JobRequest."""
    spec = request.model_dump(mode="json", exclude={*PRIVATE, "groups"}, exclude_unset=True)
    if request.groups is not None:
        spec["groups"] = [
            group.model_dump(mode="json", exclude={"command"}, exclude_unset=True) for group in request.groups
        ]
    return {key: value for key, value in spec.items() if value is not None}


def private_part(request: JobRequest) -> dict[str, Any]:
    """What is for the team's eyes only; `group_commands` is by name of the group."""
    if request.groups is None and request.model_fields_set.isdisjoint(PRIVATE):
        return {}
    private: dict[str, Any] = request.model_dump(mode="json", include=set(PRIVATE), exclude_defaults=True)
    commands = {group.name: group.command for group in request.groups or () if group.command is not None}
    if commands:
        private["group_commands"] = commands
    return private


def has_something_to_run(request: JobRequest) -> bool:
    if request.command is not None or request.script is not None:
        return True
    return any(group.command is not None for group in request.groups or ())


def shape_of(request: JobRequest, *, is_runnable: bool | None = None) -> str:
    """Digest of everything that decides where a job fits.

    To the spec's own shape it adds the only cluster the job may use, and whether it brings something to run:
    a job without a command can only be played by a simulated cluster.
    """
    runs = has_something_to_run(request) if is_runnable is None else is_runnable
    text = f"{shape_key(request)}|{request.cluster or ''}|{'runs' if runs else 'plays'}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def n_devices_of(request: JobRequest) -> Decimal:
    return _exact(request.n_devices)


@lru_cache(maxsize=4096)
def _exact(n_devices: float) -> Decimal:
    return min(round(Decimal(n_devices), 6), _MOST_DEVICES)


def request_of(spec: Mapping[str, Any], private: Mapping[str, Any] | None = None) -> JobRequest:
    """The request a job was made from, with its private part where the caller may have it."""
    fields = dict(spec)
    if private:
        fields.update({key: private[key] for key in PRIVATE if key in private})
        commands = private.get("group_commands", {})
        if commands and "groups" in fields:
            fields["groups"] = [
                {**group, "command": commands[group["name"]]} if group["name"] in commands else group
                for group in fields["groups"]
            ]
    return JobRequest.model_validate(fields)
