"""Who belongs to which team, and what each team may use."""

from django.db.models import Prefetch, QuerySet

from apps.teams import policies
from apps.teams.models import FacilityRole, MemberRole, Quota, Team, Token, User


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
