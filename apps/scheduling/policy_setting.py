"""The policy in force: read by everybody, set by administrators; each pass takes it as it stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Annotated, Any, Final, Literal

from django.db import transaction
from pydantic import BeforeValidator, Field

from apps.core.errors import InvalidInput, VersionConflict
from apps.core.strict import CountOrZero, Misfit, Number, Seconds, SecondsOrZero, Strict
from apps.events.services import record
from apps.scheduling.engine.facts import Policy
from apps.scheduling.engine.named import NAMED
from apps.scheduling.models import PolicySetting
from apps.scheduling.selectors import policy_of
from apps.teams import policies
from apps.teams.models import User

ALL: Final = "all"  # as a depth: every job that waits


def _depth(value: Any) -> Any:
    if value == ALL and isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit('must be a whole number, or "all"', code="wrong_type")
    if not 0 <= value <= 1_000_000:
        raise Misfit('must be from 0 to 1000000, or "all"', code="out_of_range")
    return value


class PolicyValues(Strict):
    """How to decide. What is absent is as the named policy has it."""

    order: Annotated[
        Literal["priority", "submit", "shortest"],
        Field(
            description="What goes first: of higher priority, then of the team furthest below its fair share, then "
            "the earlier (`priority`); the same, but of one team the probably shortest (`shortest`); the earlier, "
            "whatever else (`submit`)."
        ),
    ] = "priority"
    backfill_depth: Annotated[
        int | Literal["all"],
        BeforeValidator(_depth),
        Field(description="Jobs that are promised a start which nothing may delay: 0 strict, 1 EASY."),
    ] = 64
    keeps_promises: Annotated[bool, Field(description="A promise never moves later.")] = False
    starving_s: Annotated[
        SecondsOrZero, Field(description="With `shortest`: who waited so long goes before all who did not.")
    ] = 86_400.0
    starving_by_width: Annotated[
        Number,
        Field(ge=0, le=1, description="Share of that time that a job is spared which asks for all there is."),
    ] = 0.0
    ageing_s: Annotated[
        Seconds | None, Field(description="A job gains a step of priority for each such time; null: none.")
    ] = None
    half_life_s: Annotated[Seconds, Field(description="In which past use counts half in fair share.")] = (
        7 * 86_400.0
    )
    preemption: Annotated[bool, Field(description="Running jobs may be made to give way.")] = True
    shield_s: Annotated[SecondsOrZero, Field(description="A job younger than this does not give way.")] = 60.0
    most_evictions: Annotated[
        CountOrZero | None,
        Field(description="A job that gave way so often does not any more; null: no bound."),
    ] = 5
    packing: Annotated[
        bool, Field(description="The fullest place that will do, so that whole ones stay.")
    ] = True
    staging_hold_s: Annotated[SecondsOrZero, Field(description="Devices wait for data at most so long.")] = (
        60.0
    )

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"ageing_s", "most_evictions"})


FIELDS: Final = tuple(PolicyValues.model_fields)


@dataclass(frozen=True, slots=True)
class InForce:
    """The policy in force, as it is written and read."""

    name: str | None  # of the named policies, where it is one of them
    values: Mapping[str, Any]  # by field of PolicyValues
    version: int


def in_force() -> InForce:
    """The policy in force."""
    return _told(PolicySetting.objects.first())


def named(name: str) -> Mapping[str, Any]:
    """A named policy, field by field; raises KeyError where there is none of that name."""
    return _values(policy_of(NAMED[name]))


def _told(row: PolicySetting | None) -> InForce:
    policy = policy_of({} if row is None else row.values)
    name = next((name for name, changes in NAMED.items() if policy_of(changes) == policy), None)
    return InForce(name, _values(policy), 1 if row is None else row.version)


def _values(policy: Policy) -> dict[str, Any]:
    """As people write it: no infinity, and a depth without end is "all"."""
    values = {name: getattr(policy, name) for name in FIELDS}
    values["backfill_depth"] = ALL if policy.backfill_depth is None else policy.backfill_depth
    values["ageing_s"] = policy.ageing_s if 0 < policy.ageing_s < inf else None
    return values


def _as_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the usual policy, as fields of the engine's."""
    stored = dict(values)
    if stored.get("backfill_depth") == ALL:
        stored["backfill_depth"] = None
    if stored.get("ageing_s", inf) is None:
        del stored["ageing_s"]
    usual = policy_of({})
    return {name: value for name, value in stored.items() if value != getattr(usual, name)}


@transaction.atomic
def set_policy(
    *,
    values: PolicyValues,
    name: str = "default",
    actor: User,
    at: datetime,
    version: int,
    reason: str = "",
) -> InForce:
    """Replace the policy as a whole, from the next pass on; for administrators.

    Args:
        values: What it changes about the named policy: the fields that were given, and no other.
        name: Of the policy to begin from.

    Raises:
        VersionConflict: somebody changed it meanwhile; facts show both.
        InvalidInput: there is no policy of that name.
    """
    policies.require_admin(actor)
    if name not in NAMED:
        raise InvalidInput.of("name", f"must be one of {', '.join(NAMED)}", "not_a_choice")
    PolicySetting.objects.get_or_create(singleton=True)
    row = PolicySetting.objects.select_for_update().get()
    before = _told(row).values
    given = {field: getattr(values, field) for field in values.model_fields_set & set(FIELDS)}
    after = {**named(name), **given}
    if row.version != version:
        raise VersionConflict(
            "The policy",
            read=version,
            version=row.version,
            yours=_difference(before, after),
            stored=dict(before),
        )
    # What no door can say stays as it was put there by hand.
    kept = {key: value for key, value in row.values.items() if key not in FIELDS}
    wanted = {**kept, **_as_stored(after)}
    if before == after:
        return _told(row)
    row.values, row.version = wanted, row.version + 1
    row.save(update_fields=["values", "version"])
    record(
        "policy.changed",
        subject_kind="policy",
        subject_id=row.pk,
        subject_name=_told(row).name or "",
        at=at,
        actor=actor,
        is_audit=True,
        reason=reason,
        before={key: before[key] for key in _difference(before, after)},
        after=_difference(before, after),
    )
    return _told(row)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in after.items() if value != before[key]}
