"""Who belongs to which team, and what each team may use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Prefetch, Q, QuerySet, Sum

from apps.core.errors import NotFound
from apps.teams import policies
from apps.teams.models import (
    FacilityRole,
    LimitedUse,
    MemberLimit,
    MemberRole,
    Membership,
    Quota,
    Team,
    Token,
    User,
)


def teams_visible_to(viewer: User) -> QuerySet[Team]:
    """Everyone signed in sees all teams and their quotas."""
    return Team.objects.all() if viewer.is_authenticated else Team.objects.none()


def teams_with_quotas(viewer: User) -> QuerySet[Team]:
    """Teams with their quotas and their types at hand, by name."""
    quotas = Quota.objects.select_related("accelerator_type").order_by("accelerator_type__name")
    return (
        teams_visible_to(viewer)
        .prefetch_related(Prefetch("quotas", quotas))
        .select_related("parent")
        .order_by("name")
    )


def sub_teams(viewer: User, team: Team) -> QuerySet[Team]:
    return teams_with_quotas(viewer).filter(parent=team)


def teams_to_submit_for(user: User) -> list[Team]:
    """Teams this person may submit jobs of: its own and those below, leaves of the tree only."""
    return list(Team.objects.filter(id__in=policies.team_ids_of(user), children=None).order_by("name"))


def tokens_of(user: User) -> QuerySet[Token]:
    return Token.objects.filter(user=user).order_by("-created_at")


_ROLE_WORDS = {
    FacilityRole.ADMIN: "Administrator",
    FacilityRole.POWER_ADMIN: "Power admin",
    FacilityRole.OPERATOR: "Facility operator",
    FacilityRole.AUDITOR: "Auditor",
}


def role_words(user: User) -> str:
    """What this person is here, in a few words: its role in the facility, else in its teams."""
    if word := _ROLE_WORDS.get(FacilityRole(user.facility_role)):
        return word
    memberships = list(user.memberships.select_related("team").order_by("team__name")[:3])
    if not memberships:
        return "Viewer"
    names = ", ".join(membership.team.name for membership in memberships)
    return f"Lead, {names}" if any(one.role == MemberRole.LEAD for one in memberships) else names


def team_named(name: str, *, viewer: User) -> Team:
    """The team of this name; NotFound without one."""
    known = teams_visible_to(viewer).select_related("parent")
    team = None if "\x00" in name else known.filter(name=name).first()
    if team is None:
        raise NotFound(f"There is no team {name!r}.")
    return team


def members_of(team: Team) -> QuerySet[Membership]:
    return Membership.objects.filter(team=team).select_related("user").order_by("user__username")


def memberships_of(user: User) -> QuerySet[Membership]:
    return Membership.objects.filter(user=user).select_related("team").order_by("team__name")


@dataclass(frozen=True, slots=True)
class Owned:
    """What a team owns of one accelerator type."""

    accelerator_type: str
    entitlement: int
    borrow_limit: int | None
    lend_limit: int | None
    given_to_sub_teams: int

    @property
    def kept_back(self) -> int:
        """What no sub-team is entitled to."""
        return self.entitlement - self.given_to_sub_teams


def owned_by(teams: Iterable[Team]) -> Mapping[int, tuple[Owned, ...]]:
    """By team id: what each team owns, by name of type. Two queries, however many teams."""
    ids = [team.pk for team in teams]
    given = {
        (row["team__parent_id"], row["accelerator_type_id"]): row["total"]
        for row in Quota.objects.filter(team__parent_id__in=ids)
        .values("team__parent_id", "accelerator_type_id")
        .annotate(total=Sum("entitlement"))
    }
    found: dict[int, tuple[Owned, ...]] = dict.fromkeys(ids, ())
    quotas = (
        Quota.objects.filter(team_id__in=ids)
        .select_related("accelerator_type")
        .order_by("accelerator_type__name")
    )
    for quota in quotas:
        found[quota.team_id] += (
            Owned(
                accelerator_type=quota.accelerator_type.name,
                entitlement=quota.entitlement,
                borrow_limit=quota.borrow_limit,
                lend_limit=quota.lend_limit,
                given_to_sub_teams=given.get((quota.team_id, quota.accelerator_type_id), 0),
            ),
        )
    return found


def limits_of(team: Team) -> QuerySet[MemberLimit]:
    """What members of this team may have at once: of every member first, then by name, as they are named."""
    return (
        MemberLimit.objects.filter(team=team)
        .select_related("user", "accelerator_type")
        .order_by(F("user__username").asc(nulls_first=True), "what", "accelerator_type__name")
    )


def most_waiting(user: User, team_ids: Iterable[int]) -> dict[int, tuple[int, bool]]:
    """By team, how many jobs this person may have waiting, and whether that is said of them by name.

    Teams that do not limit it are left out. One query.
    """
    found: dict[int, tuple[int | None, bool]] = {}
    rows = MemberLimit.objects.filter(team_id__in=list(team_ids), what=LimitedUse.WAITING_JOBS).filter(
        Q(user=None) | Q(user=user)
    )
    # What is said of the person comes last and stands.
    for team_id, user_id, most in rows.order_by(F("user_id").asc(nulls_first=True)).values_list(
        "team_id", "user_id", "most"
    ):
        found[team_id] = most, user_id is not None
    return {team_id: (most, is_named) for team_id, (most, is_named) in found.items() if most is not None}


def people() -> QuerySet[User]:
    """Everybody who has an account, with their teams at hand; for who may see the list of people."""
    return User.objects.prefetch_related("memberships__team")


def person_named(username: str) -> User:
    """The person of a name; raises NotFound."""
    found = None if "\x00" in username else User.objects.filter(username=username).first()
    if found is None:
        raise NotFound("There is no such person.")
    return found


def accelerator_type_ids() -> dict[str, int]:
    """Ids of the accelerator types by name. The model of types is above this room: it is reached by the key."""
    type_model: Any = Quota._meta.get_field("accelerator_type").related_model
    return dict(type_model.objects.values_list("name", "pk"))
