"""Changing people, teams, what teams own, and tokens. An actor of None is the site itself (first start, commands)."""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError

from apps.core.columns import Columns
from apps.core.errors import Forbidden, InvalidInput, NameTaken, NotFound, VersionConflict
from apps.events.services import record
from apps.teams import loans, policies, selectors, throttles
from apps.teams.errors import CeilingAboveParent, MoreThanKeptBack, MoreThanOwned, NotYourTeam, TeamInUse
from apps.teams.loans import lent_from
from apps.teams.models import (
    HEALTH,
    READ,
    SCOPES,
    WRITE,
    FacilityRole,
    IdempotentAnswer,
    LimitedUse,
    MemberLimit,
    MemberRole,
    Membership,
    Quota,
    Team,
    Token,
    User,
)
from apps.teams.selectors import limits_of

MOST_WEIGHT: Final = 1e9

# People ------------------------------------------------------------------------------------------------------------


@transaction.atomic
def create_user(
    *,
    username: str,
    password: str | None,
    actor: User | None,
    at: datetime,
    facility_role: str = FacilityRole.NONE,
    email: str = "",
    full_name: str = "",
) -> User:
    """A person, or a service account that signs in by token alone (no password)."""
    _require_admin(actor)
    if facility_role not in FacilityRole.values:
        raise InvalidInput.of("facility_role", "is not a role", "not_a_choice")
    _require_good_name(username)
    if actor is not None and password is not None:
        _require_good_password(password, username)
    first, _, last = full_name.partition(" ")
    try:
        with transaction.atomic():
            user = User.objects.create_user(
                username=username,
                email=email,
                password=password,
                facility_role=facility_role,
                first_name=first,
                last_name=last,
            )
    except IntegrityError:
        raise NameTaken("person", username) from None
    _record_user("user.created", user, actor=actor, at=at, after={"facility_role": facility_role})
    return user


@transaction.atomic
def set_facility_role(
    *, user_id: int, facility_role: str, actor: User | None, at: datetime, reason: str = ""
) -> User:
    """What a person may do in the whole facility."""
    _require_admin(actor)
    if facility_role not in FacilityRole.values:
        raise InvalidInput.of("facility_role", "is not a role", "not_a_choice")
    user = _locked_user(user_id)
    if user.facility_role != facility_role:
        before = {"facility_role": user.facility_role}
        user.facility_role = facility_role
        user.save(update_fields=["facility_role"])
        after = {"facility_role": facility_role}
        _record_user("user.role_changed", user, actor=actor, at=at, before=before, after=after, reason=reason)
    return user


@transaction.atomic
def set_active(*, user_id: int, is_active: bool, actor: User | None, at: datetime, reason: str = "") -> User:
    """Let a person sign in, or no more; their jobs, teams and tokens stay as they are, for when they come back."""
    _require_admin(actor)
    user = _locked_user(user_id)
    if actor is not None and user.pk == actor.pk and not is_active:
        raise InvalidInput.of("is_active", "is not yours to take from yourself")
    if user.is_active != is_active:
        user.is_active = is_active
        user.save(update_fields=["is_active"])
        kind = "user.let_in" if is_active else "user.shut_out"
        _record_user(kind, user, actor=actor, at=at, reason=reason)
    return user


def _require_good_name(username: str) -> None:
    bad = InvalidInput.of("username", "must be up to 150 letters, digits and @ . + - _")
    if len(username) > 150 or username in (".", ".."):
        raise bad
    try:
        User.username_validator(username)
    except ValidationError:
        raise bad from None


def _require_good_password(password: str, username: str) -> None:
    try:
        validate_password(password, User(username=username))
    except ValidationError as error:
        raise InvalidInput.of("password", " ".join(error.messages)) from None


def _locked_user(user_id: int) -> User:
    user = User.objects.select_for_update(no_key=True).filter(pk=user_id).first()
    if user is None:
        raise NotFound("There is no such person.")
    return user


def _record_user(kind: str, user: User, *, actor: User | None, at: datetime, **more: Any) -> None:
    record(
        kind,
        subject_kind="user",
        subject_id=user.pk,
        subject_name=user.get_username(),
        actor=actor,
        at=at,
        is_audit=True,
        is_private=True,
        **more,
    )


# Teams -------------------------------------------------------------------------------------------------------------


USUAL_CEILING: Final = 100


@transaction.atomic
def create_team(
    *,
    name: str,
    actor: User | None,
    at: datetime,
    parent: Team | None = None,
    weight: float = 1.0,
    priority_ceiling: int | None = None,
    reason: str = "",
) -> Team:
    """A top team (administrators), or a part of a team (its leads), which is given no higher priority than that has.

    Without a `priority_ceiling` it is the usual one, or the parent's where that is lower.
    """
    if parent is None:
        _require_admin(actor)
    elif actor is not None:
        policies.require_lead(actor, parent)
    if priority_ceiling is None:
        above = USUAL_CEILING if parent is None else policies.ceiling_of(parent)
        priority_ceiling = min(USUAL_CEILING, above)
    _require_ceiling_within(actor, name, parent, priority_ceiling)
    try:
        with transaction.atomic():
            team = Team.objects.create(
                name=name, parent=parent, weight=weight, priority_ceiling=priority_ceiling
            )
    except IntegrityError:
        raise NameTaken("team", name) from None
    _record_team("team.created", team, actor=actor, at=at, after=_facts_of(team), reason=reason)
    return team


@transaction.atomic
def update_team(
    *,
    team_id: int,
    changes: Mapping[str, Any],
    version: int,
    actor: User | None,
    at: datetime,
    reason: str = "",
) -> Team:
    """Change `name`, `parent` (a Team or None), `weight` or `priority_ceiling`.

    Weight and ceiling are given from above: by a lead of the parent. Names and places in the tree are for
    administrators.
    """
    team = _locked(team_id)
    if actor is not None:
        if set(changes) & {"name", "parent"}:
            policies.require_admin(actor)
        policies.require_may_divide(actor, team)
    before = _facts_of(team)
    if team.version != version:
        yours = before | {key: _plain(value) for key, value in changes.items()}
        raise VersionConflict(f"Team {team}", read=version, version=team.version, yours=yours, stored=before)
    for key, value in changes.items():
        assert key in ("name", "parent", "weight", "priority_ceiling"), key
        setattr(team, key, value)
    after = _facts_of(team)
    if before == after:
        return team
    if (before["priority_ceiling"], before["parent"]) != (after["priority_ceiling"], after["parent"]):
        _require_ceiling_within(actor, team.name, team.parent, team.priority_ceiling)
    team.version += 1
    try:
        with transaction.atomic():
            team.save()
    except IntegrityError as error:
        if "above_itself" in str(error) or "its_own_parent" in str(error):
            raise InvalidInput.of("parent", "must not be the team itself, or below it") from None
        raise NameTaken("team", team.name) from None
    if before["parent"] != after["parent"]:
        _require_within_owned([team.parent_id], at)
    _record_team("team.changed", team, actor=actor, at=at, before=before, after=after, reason=reason)
    return team


@transaction.atomic
def delete_team(*, team_id: int, actor: User | None, at: datetime, reason: str = "") -> None:
    """Take away a team that nothing refers to. Loans that are over go with it; the audit trail keeps them."""
    _require_admin(actor)
    team = _locked(team_id)
    loans.require_over(team, at)
    before, name, pk = _facts_of(team), team.name, team.pk
    try:
        with transaction.atomic():
            loans.loans_of(team).delete()
            team.delete()
    except ProtectedError:
        raise TeamInUse(
            f"Team {name} has sub-teams, jobs or reservations; it can not be taken away."
        ) from None
    team.pk, team.name = pk, name
    _record_team("team.deleted", team, actor=actor, at=at, before=before, reason=reason)


@transaction.atomic
def set_member(
    *, team_id: int, user: User, role: str, actor: User | None, at: datetime, reason: str = ""
) -> Membership:
    """Take a person into a team, or change their role in it. Twice changes nothing."""
    team = _locked(team_id)
    if role not in MemberRole.values:
        raise InvalidInput.of("role", "must be member or lead", "not_a_choice")
    if actor is not None:
        policies.require_lead(actor, team)
    membership = Membership.objects.filter(team=team, user=user).first()
    before = None if membership is None else {"role": membership.role}
    if membership is None:
        membership = Membership.objects.create(team=team, user=user, role=role)
    elif membership.role == role:
        return membership
    else:
        membership.role = role
        membership.save(update_fields=["role"])
    data = {"user_id": user.pk, "username": user.get_username()}
    after = {"role": role}
    _record_team(
        "team.member_set", team, actor=actor, at=at, before=before, after=after, data=data, reason=reason
    )
    return membership


@transaction.atomic
def remove_member(*, team_id: int, user: User, actor: User | None, at: datetime, reason: str = "") -> None:
    """Take a person out of a team; their jobs stay the team's. Twice changes nothing."""
    team = _locked(team_id)
    if actor is not None:
        policies.require_lead(actor, team)
    membership = Membership.objects.filter(team=team, user=user).first()
    if membership is None:
        return
    before: dict[str, Any] = {"role": membership.role}
    membership.delete()
    if own := limits_of(team).filter(user=user):
        before["limits"] = _limit_facts(own)[user.get_username()]
        own.delete()
        _count_change(team)
    data = {"user_id": user.pk, "username": user.get_username()}
    _record_team("team.member_removed", team, actor=actor, at=at, before=before, data=data, reason=reason)


def _require_ceiling_within(actor: User | None, name: str, parent: Team | None, ceiling: int) -> None:
    if actor is None or parent is None or policies.is_admin(actor):
        return
    above = policies.ceiling_of(parent)
    if ceiling > above:
        raise CeilingAboveParent(team=name, parent=parent.name, asked=ceiling, ceiling=above)


def _locked(team_id: int) -> Team:
    # Not the parent too: a LEFT JOIN can not be locked, and the parent is read only.
    team = Team.objects.select_for_update(no_key=True).filter(pk=team_id).first()
    if team is None:
        raise NotFound("There is no such team.")
    return team


def _facts_of(team: Team) -> dict[str, Any]:
    return {
        "name": team.name,
        "parent": None if team.parent is None else team.parent.name,
        "weight": team.weight,
        "priority_ceiling": team.priority_ceiling,
    }


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Team) else value


def _record_team(kind: str, team: Team, *, actor: User | None, at: datetime, **more: Any) -> None:
    record(
        kind,
        subject_kind="team",
        subject_id=team.pk,
        subject_name=team.name,
        actor=actor,
        at=at,
        is_audit=True,
        **more,
    )


# Quotas ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuotaEntry:
    """What a team owns of one accelerator type, in devices; a limit of None is no limit."""

    accelerator_type: str
    entitlement: int = 0
    borrow_limit: int | None = None
    lend_limit: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """All that one team owns from now on, and the version of the team it is based on; None: its weight stays."""

    team_id: int
    entries: Sequence[QuotaEntry]
    version: int
    weight: float | None = None


@transaction.atomic
def found_team(
    *, name: str, owned: Sequence[QuotaEntry], actor: User, at: datetime, reason: str = ""
) -> Team:
    """A top team with what it owns, led by who makes it; all of that or nothing. For administrators."""
    team = create_team(name=name, actor=actor, at=at, reason=reason)
    set_member(team_id=team.pk, user=actor, role=MemberRole.LEAD, actor=actor, at=at, reason=reason)
    if owned:
        team = set_quota(team=team, entries=owned, actor=actor, at=at, version=team.version, reason=reason)
    return team


def set_quota(
    *,
    team: Team,
    entries: Iterable[QuotaEntry],
    actor: User | None,
    at: datetime,
    version: int,
    reason: str = "",
) -> Team:
    """Replace what a team owns, as a whole; types that are not named are not owned any more."""
    change = QuotaChange(team.pk, tuple(entries), version)
    return set_quotas(changes=[change], actor=actor, at=at, reason=reason)[0]


@transaction.atomic
def set_quotas(
    *, changes: Sequence[QuotaChange], actor: User | None, at: datetime, reason: str = ""
) -> list[Team]:
    """Replace what several teams own, at once: what counts is how it adds up afterwards.

    Entitlements are given from above: by leads of the team above, by administrators to top teams. How far a team
    borrows and lends is for its own leads too.

    Raises:
        VersionConflict: somebody changed one of them meanwhile; facts show both.
        MoreThanOwned: sub-teams would be entitled to more than their team owns.
    """
    teams = locked_with_parents(change.team_id for change in changes)
    types = _types_named(changes)
    parent_ids: set[int | None] = set()
    for change in changes:
        team = teams[change.team_id]
        stored = _entries_of(team)
        wanted = {entry.accelerator_type: entry for entry in change.entries}
        _require_may_set_quota(actor, team, stored, wanted)
        if team.version != change.version:
            raise VersionConflict(
                f"The quota of {team}",
                read=change.version,
                version=team.version,
                yours=_quota_facts(wanted),
                stored=_quota_facts(stored),
            )
        if change.weight is not None and change.weight != team.weight:
            _weigh(team, change.weight, actor=actor, at=at, reason=reason)
        if stored == wanted:
            continue
        _write_quota(team, wanted, types)
        parent_ids |= {team.pk, team.parent_id}
        _record_team(
            "quota.changed",
            team,
            actor=actor,
            at=at,
            reason=reason,
            before=_quota_facts(stored),
            after=_quota_facts(wanted),
        )
    _require_within_owned(parent_ids, at)
    return [teams[change.team_id] for change in changes]


def _weigh(team: Team, weight: float, *, actor: User | None, at: datetime, reason: str) -> None:
    """Set a team's weight beside those it shares with."""
    if actor is not None:
        policies.require_may_divide(actor, team)
    if not 0 < weight < MOST_WEIGHT:  # NaN is not
        raise InvalidInput.of("weight", f"must be a number above 0 and below {MOST_WEIGHT:,.0f}")
    before = _facts_of(team)
    team.weight = weight
    team.version += 1
    team.save(update_fields=["weight", "version"])
    _record_team(
        "team.changed", team, actor=actor, at=at, before=before, after=_facts_of(team), reason=reason
    )


def locked_with_parents(team_ids: Iterable[int]) -> dict[int, Team]:
    """Teams by id. Those above are locked too: two leads giving at once could give more than there is."""
    ids = set(team_ids)
    parents = Team.objects.filter(pk__in=ids).exclude(parent=None).values_list("parent_id", flat=True)
    locked = Team.objects.select_for_update(no_key=True).filter(pk__in=ids | set(parents)).order_by("pk")
    teams = {team.pk: team for team in locked}
    if missing := ids - set(teams):
        raise NotFound(f"There is no team {min(missing)}.")
    return teams


def raise_entitlement(
    *, team: Team, accelerator_type: str, by: int, actor: User, at: datetime, reason: str
) -> None:
    """Entitle a team, locked by the caller, to so many devices more, as `set_quotas` does and by its rules."""
    stored = _entries_of(team)
    had = stored.get(accelerator_type, QuotaEntry(accelerator_type, 0))
    stored[accelerator_type] = replace(had, entitlement=had.entitlement + by)
    change = QuotaChange(team.pk, tuple(stored.values()), team.version)
    set_quotas(changes=[change], actor=actor, at=at, reason=reason)


def _types_named(changes: Sequence[QuotaChange]) -> dict[str, int]:
    """As `selectors.accelerator_type_ids`; raises InvalidInput where a change names none of them, or one twice."""
    types = selectors.accelerator_type_ids()
    faults = []
    for change in changes:
        seen: set[str] = set()
        for index, entry in enumerate(change.entries):
            path = f"entries[{index}].accelerator_type"
            if entry.accelerator_type not in types:
                faults.append({"path": path, "code": "unknown", "message": "is not an accelerator type here"})
            elif entry.accelerator_type in seen:
                faults.append({"path": path, "code": "invalid", "message": "must not be named twice"})
            seen.add(entry.accelerator_type)
    if faults:
        raise InvalidInput(faults)
    return types


def _entries_of(team: Team) -> dict[str, QuotaEntry]:
    return {
        row.accelerator_type.name: QuotaEntry(
            row.accelerator_type.name, row.entitlement, row.borrow_limit, row.lend_limit
        )
        for row in Quota.objects.filter(team=team).select_related("accelerator_type")
    }


def _require_may_set_quota(
    actor: User | None, team: Team, stored: Mapping[str, QuotaEntry], wanted: Mapping[str, QuotaEntry]
) -> None:
    if actor is None or policies.may_divide(actor, team):
        return
    if not policies.is_lead(actor, team):
        raise NotYourTeam(f"Only leads of {team}, or of a team above it, may set its quota.")
    names = set(stored) | set(wanted)
    for name in sorted(names):
        owned, asked = stored.get(name), wanted.get(name)
        if (owned.entitlement if owned else 0) != (asked.entitlement if asked else 0):
            giver = "administrators" if team.parent is None else f"leads of {team.parent}"
            raise NotYourTeam(
                f"What {team} is entitled to is set by {giver}; you may set how far it borrows and lends."
            )


def _write_quota(team: Team, wanted: Mapping[str, QuotaEntry], types: Mapping[str, int]) -> None:
    Quota.objects.filter(team=team).exclude(accelerator_type_id__in=[types[name] for name in wanted]).delete()
    Quota.objects.bulk_create(
        [
            Quota(
                team=team,
                accelerator_type_id=types[entry.accelerator_type],
                entitlement=entry.entitlement,
                borrow_limit=entry.borrow_limit,
                lend_limit=entry.lend_limit,
            )
            for entry in wanted.values()
        ],
        update_conflicts=True,
        unique_fields=["team", "accelerator_type"],
        update_fields=["entitlement", "borrow_limit", "lend_limit"],
    )
    _count_change(team)


def _count_change(team: Team) -> None:
    team.version += 1
    team.save(update_fields=["version"])


def _require_within_owned(team_ids: Iterable[int | None], at: datetime) -> None:
    """Refuse sub-teams that are entitled to more, together, than their team, or to what it lent to others."""
    for team_id in sorted(team_id for team_id in team_ids if team_id is not None):
        owned = dict(
            Quota.objects.filter(team_id=team_id).values_list("accelerator_type__name", "entitlement")
        )
        given: dict[str, int] = {}
        for name, entitlement in Quota.objects.filter(team__parent_id=team_id).values_list(
            "accelerator_type__name", "entitlement"
        ):
            given[name] = given.get(name, 0) + entitlement
        for name in sorted(given):
            if given[name] > owned.get(name, 0):
                team = Team.objects.get(pk=team_id)
                raise MoreThanOwned(
                    team=team.name, accelerator_type=name, owned=owned.get(name, 0), given=given[name]
                )
        for name, lent in sorted(lent_from(team_id, at).items()):
            if lent > (free := owned.get(name, 0) - given.get(name, 0)):
                team = Team.objects.get(pk=team_id)
                raise MoreThanKeptBack(team=team.name, accelerator_type=name, free=free, asked=lent)


def _quota_facts(entries: Mapping[str, QuotaEntry]) -> dict[str, Any]:
    return {
        name: {
            "entitlement": entry.entitlement,
            "borrow_limit": entry.borrow_limit,
            "lend_limit": entry.lend_limit,
        }
        for name, entry in sorted(entries.items())
    }


# Limits of members ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberLimitEntry:
    """How much one member may have at once: of `member` alone, or (None) of everyone who is not named."""

    what: str  # of LimitedUse
    most: int | None  # None: no limit, for a member who is named
    member: str | None = None
    accelerator_type: str | None = None  # of devices, and of nothing else


EVERY_MEMBER: Final = "every member"  # in facts; no username has a space


@transaction.atomic
def set_member_limits(
    *,
    team: Team,
    entries: Sequence[MemberLimitEntry],
    actor: User | None,
    at: datetime,
    version: int,
    reason: str = "",
) -> Team:
    """Replace, as a whole, how much one member may have at once; what is not named is not limited any more.

    For leads of the team or above it. What runs already goes on, and what waits stays, though it be more.

    Raises:
        VersionConflict: somebody changed the team meanwhile; facts show both.
        InvalidInput: an entry names nobody of this team, no type, or something twice.
    """
    team = _locked(team.pk)
    if actor is not None:
        policies.require_lead(actor, team)
    stored = list(limits_of(team))
    before, after = _limit_facts(stored), _limit_facts(entries)
    if team.version != version:
        raise VersionConflict(
            f"The limits of members of {team}",
            read=version,
            version=team.version,
            yours=after,
            stored=before,
        )
    wanted = _limits_named(team, entries)
    if before == after:
        return team
    MemberLimit.objects.filter(team=team).delete()
    MemberLimit.objects.bulk_create(wanted)
    _count_change(team)
    _record_team(
        "quota.member_limits_changed", team, actor=actor, at=at, reason=reason, before=before, after=after
    )
    return team


def _limits_named(team: Team, entries: Sequence[MemberLimitEntry]) -> list[MemberLimit]:
    """The rows that entries mean; raises InvalidInput with every fault of theirs."""
    types = selectors.accelerator_type_ids()
    members = dict(Membership.objects.filter(team=team).values_list("user__username", "user_id"))
    faults: list[dict[str, str]] = []
    seen: set[tuple[object, ...]] = set()
    if entries and team.children.exists():
        faults.append(
            {"path": "entries", "code": "has_sub_teams", "message": f"{team} has sub-teams; jobs are theirs"}
        )
    for index, entry in enumerate(entries):
        key = (entry.member, entry.what, entry.accelerator_type)
        faults += [
            {"path": f"entries[{index}].{field}", "code": code, "message": message}
            for field, code, message in _limit_faults(entry, types, members)
        ] or (
            [{"path": f"entries[{index}]", "code": "invalid", "message": "must not be said twice"}]
            if key in seen
            else []
        )
        seen.add(key)
    if faults:
        raise InvalidInput(faults)
    return [
        MemberLimit(
            team=team,
            user_id=None if entry.member is None else members[entry.member],
            what=entry.what,
            accelerator_type_id=None if entry.accelerator_type is None else types[entry.accelerator_type],
            most=entry.most,
        )
        for entry in entries
    ]


def _limit_faults(
    entry: MemberLimitEntry, types: Mapping[str, int], members: Mapping[str, int]
) -> Iterator[tuple[str, str, str]]:
    """(field, code, message) of what is wrong with one entry."""
    if entry.what not in LimitedUse.values:
        yield "what", "not_a_choice", f"must be one of {', '.join(LimitedUse.values)}"
    elif entry.what == LimitedUse.DEVICES and entry.accelerator_type is None:
        yield "accelerator_type", "missing", "is missing: devices are limited by type"
    elif entry.what != LimitedUse.DEVICES and entry.accelerator_type is not None:
        yield "accelerator_type", "invalid", "is for devices alone"
    if entry.accelerator_type is not None and entry.accelerator_type not in types:
        yield "accelerator_type", "unknown", "is not an accelerator type here"
    if entry.member is not None and entry.member not in members:
        yield "member", "unknown", "is nobody of this team"
    if entry.member is None and entry.most is None:
        yield "most", "missing", "is missing: without a limit for every member, say nothing"


def _limit_facts(limits: Iterable[MemberLimit | MemberLimitEntry]) -> dict[str, dict[str, int | None]]:
    """By member, and thing by thing, the most; as events and conflicts show it."""
    facts: dict[str, dict[str, int | None]] = {}
    for limit in limits:
        if isinstance(limit, MemberLimit):
            limit = entry_of(limit)
        thing = limit.what if limit.accelerator_type is None else limit.accelerator_type
        facts.setdefault(limit.member or EVERY_MEMBER, {})[thing] = limit.most
    return {who: dict(sorted(facts[who].items())) for who in sorted(facts)}


def entry_of(limit: MemberLimit) -> MemberLimitEntry:
    """A stored limit, by names."""
    return MemberLimitEntry(
        what=limit.what,
        most=limit.most,
        member=None if limit.user is None else limit.user.get_username(),
        accelerator_type=None if limit.accelerator_type is None else limit.accelerator_type.name,
    )


# Tokens ------------------------------------------------------------------------------------------------------------

DEFAULT_SCOPES: Final = (READ, WRITE)
_PREFIX: Final = "sy_"
_HINT: Final = 8
_USE_IS_NOTED_EVERY: Final = timedelta(minutes=1)
MAX_TOKENS: Final = 100


@transaction.atomic
def create_token(
    *,
    user: User,
    name: str,
    at: datetime,
    scopes: Sequence[str] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
    actor: User | None = None,
    by: Token | None = None,
) -> tuple[Token, str]:
    """A token and its secret, which nobody can read again.

    Args:
        by: The token that asks, if one does: it makes none that may do more than itself, or that outlives it.
    """
    if not scopes or set(scopes) - set(SCOPES) or (WRITE in scopes and READ not in scopes):
        raise InvalidInput.of("scopes", "must be read, read and write, or health", "not_a_choice")
    if HEALTH in scopes and not policies.may_operate(user):
        raise InvalidInput.of("scopes", "health is for tokens of operators", "not_a_choice")
    if expires_at is not None and expires_at <= at:
        raise InvalidInput.of("expires_at", "must lie in the future", "out_of_range")
    if by is not None:
        expires_at = _within(by, scopes, expires_at)
    _locked_user(user.pk)
    if Token.objects.filter(user=user, revoked_at=None).count() >= MAX_TOKENS:
        raise InvalidInput.of("name", f"would be token number {MAX_TOKENS + 1}; revoke one first", "too_many")
    secret = _PREFIX + secrets.token_urlsafe(32)
    token = Token.objects.create(
        user=user,
        name=name,
        digest=digest_of(secret),
        hint=secret[:_HINT],
        scopes=[scope for scope in SCOPES if scope in scopes],
        created_at=at,
        expires_at=expires_at,
    )
    _record_token("token.created", token, actor=actor or user, at=at)
    return token, secret


def _within(by: Token, scopes: Sequence[str], expires_at: datetime | None) -> datetime | None:
    """When the new token ends, which is with the one that makes it unless it is to end before."""
    if WRITE not in by.scopes:
        raise Forbidden("A token that may only read makes no tokens.")
    if wider := sorted(set(scopes) - {*by.scopes, HEALTH}):  # who may write may report too
        raise InvalidInput.of("scopes", f"must be within those of your token, which lacks {', '.join(wider)}")
    if by.expires_at is None or expires_at is None:
        return expires_at or by.expires_at
    if expires_at > by.expires_at:
        ends = by.expires_at.isoformat()
        raise InvalidInput.of(
            "expires_at", f"must not lie behind the end of your token, {ends}", "out_of_range"
        )
    return expires_at


@transaction.atomic
def revoke_token(*, token_id: int, actor: User, at: datetime) -> Token:
    """Make a token useless, at once and for good. Its owner and administrators may. Twice changes nothing."""
    token = (
        Token.objects.select_for_update(of=("self",), no_key=True)
        .select_related("user")
        .filter(pk=token_id)
        .first()
    )
    if token is None or (token.user_id != actor.pk and not policies.is_admin(actor)):
        raise NotFound("There is no such token.")
    if token.revoked_at is None:
        token.revoked_at = at
        token.save(update_fields=["revoked_at"])
        _record_token("token.revoked", token, actor=actor, at=at)
    return token


_TOKEN: Final = Columns(Token, "token")
_OWNER: Final = Columns(User, "owner")
# Every request by a token asks this first.
_OWNER_OF_TOKEN: Final = (
    f"SELECT {_TOKEN.sql}, {_OWNER.sql} FROM teams_token token JOIN teams_user owner ON owner.id = token.user_id"  # noqa: S608
    " WHERE token.digest = %s AND token.revoked_at IS NULL AND (token.expires_at IS NULL OR token.expires_at > %s)"
    " AND owner.is_active"
)


def authenticate_token(secret: str, at: datetime) -> tuple[User, Token] | None:
    """Whose token this is, or None for one that is unknown, expired or revoked, or whose owner may not sign in."""
    with connection.cursor() as cursor:
        cursor.execute(_OWNER_OF_TOKEN, [digest_of(secret), at])
        row = cursor.fetchone()
    if row is None:
        return None
    token = _TOKEN.read(row[: _TOKEN.n])
    token.user = _OWNER.read(row[_TOKEN.n :])
    # To the minute is enough, and spares a write for each of hundreds of requests a second.
    if token.last_used_at is None or at - token.last_used_at >= _USE_IS_NOTED_EVERY:
        Token.objects.filter(pk=token.pk).update(last_used_at=at)
    return token.user, token


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    # A secret of 256 random bits needs no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _record_token(kind: str, token: Token, *, actor: User, at: datetime) -> None:
    record(
        kind,
        subject_kind="token",
        subject_id=token.pk,
        subject_name=token.name,
        actor=actor,
        at=at,
        is_audit=True,
        is_private=True,
        data={"username": token.user.get_username(), "scopes": token.scopes, "hint": token.hint},
    )


# Upkeep ------------------------------------------------------------------------------------------------------------


_ANSWERS_KEPT: Final = timedelta(days=1)
_DELETED_AT_ONCE: Final = 10_000
_MOST_DELETED: Final = 10_000_000


def prune(*, at: datetime) -> None:
    """Delete what was kept for a while only."""
    throttles.prune(at=at)
    old = IdempotentAnswer.objects.filter(created_at__lt=at - _ANSWERS_KEPT)
    for _ in range(0, _MOST_DELETED, _DELETED_AT_ONCE):
        some = old.order_by("created_at").values("pk")[:_DELETED_AT_ONCE]
        n_deleted, _ = IdempotentAnswer.objects.filter(pk__in=some).delete()
        if n_deleted < _DELETED_AT_ONCE:
            break


def _require_admin(actor: User | None) -> None:
    if actor is not None:
        policies.require_admin(actor)
