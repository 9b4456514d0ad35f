"""Who may do what, as far as people and teams decide it. Every question is asked here, once for all doors."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from django.db import connection

from apps.core.columns import Columns
from apps.core.errors import Forbidden
from apps.teams.models import WRITE, FacilityRole, MemberRole, Membership, Team, User


class Asked(Protocol):
    """A request, as far as it has a user."""

    @property
    def user(self) -> Any: ...


def person(request: Asked) -> User:
    """Who asks. Doors let nobody in who is not signed in: anybody else here is a mistake of ours."""
    assert isinstance(request.user, User)
    return request.user


def may_write_by(auth: Any) -> bool:
    """Whether what somebody came in by, a session or a token, is good for any change they may make."""
    scopes = getattr(auth, "scopes", None)
    return scopes is None or WRITE in scopes


def is_admin(user: User) -> bool:
    return user.is_administrator


def is_auditor(user: User) -> bool:
    """Sees everything but logs, and changes nothing."""
    return user.is_auditor


def may_operate(user: User) -> bool:
    """Acts on nodes, reservations and any job."""
    return user.is_operator


def may_look_after(user: User) -> bool:
    """Sees how the facility is run: whoever operates or audits it."""
    return may_operate(user) or is_auditor(user)


def may_set_power(user: User) -> bool:
    return is_admin(user) or (user.is_active and user.facility_role == FacilityRole.POWER_ADMIN)


def may_see_vtns(user: User) -> bool:
    """Sees which servers of the grid are listened to, and what is wrong with what they say."""
    return may_look_after(user) or may_set_power(user)


def team_ids_of(user: User) -> frozenset[int]:
    """Teams this person acts for: those they are in, and all below those they lead."""
    return user.team_ids()


def is_member(user: User, team: Team) -> bool:
    """In this team itself, in whatever role."""
    return _acts(user) and Membership.objects.filter(user=user, team=team).exists()


def is_lead(user: User, team: Team) -> bool:
    """Leads this team, or one above it."""
    if not _acts(user):
        return False
    led = set(Membership.objects.filter(user=user, role=MemberRole.LEAD).values_list("team_id", flat=True))
    return bool(led) and bool(led & set(_line_of(team)))


@dataclass(frozen=True, slots=True)
class Standing:
    """A team, and how somebody stands to it."""

    team: Team
    is_inner: bool  # there are teams below it
    line: frozenset[int]  # ids of the team and of those above it
    ceiling: int  # as ceiling_of()
    is_member: bool
    is_lead: bool


_TEAM: Final = Columns(Team, "team")
_STANDINGS: Final = f"""
WITH RECURSIVE line AS (
    SELECT id AS team_id, id, parent_id, priority_ceiling FROM teams_team WHERE name = ANY(%s)
    UNION
    SELECT line.team_id, above.id, above.parent_id, above.priority_ceiling
    FROM line JOIN teams_team above ON above.id = line.parent_id
)
SELECT {_TEAM.sql}, EXISTS (SELECT FROM teams_team below WHERE below.parent_id = team.id),
    array_agg(line.id), min(line.priority_ceiling),
    coalesce(bool_or(line.id = team.id AND membership.id IS NOT NULL), false),
    coalesce(bool_or(membership.role = %s), false)
FROM line JOIN teams_team team ON team.id = line.team_id
LEFT JOIN teams_membership membership ON membership.team_id = line.id AND membership.user_id = %s
GROUP BY team.id
"""  # noqa: S608


def standings_of(user: User, names: Collection[str]) -> dict[str, Standing]:
    """How somebody stands to the teams of these names, as is_member(), is_lead() and ceiling_of() say, at once."""
    with connection.cursor() as cursor:
        cursor.execute(_STANDINGS, [list(names), MemberRole.LEAD.value, user.pk])
        rows = cursor.fetchall()
    acts, found = _acts(user), {}
    for row in rows:
        team = _TEAM.read(row[: _TEAM.n])
        is_inner, line, ceiling, is_member, is_lead = row[_TEAM.n :]
        found[team.name] = Standing(
            team, is_inner, frozenset(line), ceiling, acts and is_member, acts and is_lead
        )
    return found


def is_lead_above(user: User, team: Team) -> bool:
    """Leads a team above this one: may give it what that team owns."""
    return team.parent is not None and is_lead(user, team.parent)


def may_divide(user: User, team: Team) -> bool:
    """May set what this team is entitled to, its weight and its ceiling."""
    return is_admin(user) or is_lead_above(user, team)


def may_lead(user: User, team: Team) -> bool:
    """May set how far this team borrows and lends, and who is in it."""
    return is_admin(user) or is_lead(user, team)


def led_of(user: User, teams: Iterable[Team]) -> frozenset[int]:
    """Ids of those of these teams that this person may lead, as may_lead() says of each, at once."""
    known = {team.name: team.pk for team in teams}
    if is_admin(user) or not known:
        return frozenset(known.values())
    standings = standings_of(user, known)
    return frozenset(pk for name, pk in known.items() if name in standings and standings[name].is_lead)


def ceiling_of(team: Team) -> int:
    """The highest priority that a job of this team may have: what it was given, as far as those above have it too."""
    # Parents stay at hand on the instance: a batch of a thousand jobs of one team asks once.
    ceiling, above = team.priority_ceiling, team.parent
    while above is not None:
        ceiling, above = min(ceiling, above.priority_ceiling), above.parent
    return ceiling


def require_admin(user: User) -> None:
    _require(is_admin(user), "Only administrators may do this.")


def require_may_see_people(user: User) -> None:
    _require(
        is_admin(user) or is_auditor(user), "Only administrators and auditors may see the list of people."
    )


def require_may_operate(user: User) -> None:
    _require(may_operate(user), "Only operators may do this.")


def require_may_set_power(user: User) -> None:
    _require(may_set_power(user), "Only power administrators may do this.")


def require_may_see_vtns(user: User) -> None:
    _require(may_see_vtns(user), "Only operators, power administrators and auditors may see this.")


def require_member(user: User, team: Team) -> None:
    _require(
        is_admin(user) or is_member(user, team) or is_lead(user, team), f"Only members of {team} may do this."
    )


def require_lead(user: User, team: Team) -> None:
    _require(may_lead(user, team), f"Only leads of {team}, or of a team above it, may do this.")


def require_may_divide(user: User, team: Team) -> None:
    who = "an administrator" if team.parent is None else f"a lead of {team.parent}"
    _require(may_divide(user, team), f"Only {who} may set what {team} is entitled to.")


def _acts(user: User) -> bool:
    return user.is_active and not is_auditor(user)


def _line_of(team: Team) -> list[int]:
    """Ids of this team and of those above it. Trees of teams are shallow: a query a level."""
    line = [team.pk]
    parent_id = team.parent_id
    while parent_id is not None:
        line.append(parent_id)
        parent_id = Team.objects.values_list("parent_id", flat=True).get(pk=parent_id)
    return line


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Forbidden(message)
