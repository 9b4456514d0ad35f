"""People and teams that name only what matters."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rest_framework.test import APIClient

from apps.inventory import services as inventory
from apps.inventory.models import AcceleratorType
from apps.teams import services
from apps.teams.models import MemberRole, Team, User
from apps.teams.services import QuotaEntry

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def person(name: str, role: str = "", *, leads: Team | None = None, member_of: Team | None = None) -> User:
    user = services.create_user(username=name, password=None, facility_role=role, actor=None, at=NOON)
    for team, member_role in ((leads, MemberRole.LEAD), (member_of, MemberRole.MEMBER)):
        if team is not None:
            services.set_member(team_id=team.pk, user=user, role=member_role, actor=None, at=NOON)
    return user


def team(name: str, parent: Team | None = None, **owns: int) -> Team:
    made = services.create_team(name=name, parent=parent, actor=None, at=NOON)
    if owns:
        own(made, **owns)
    return made


def own(made: Team, *, actor: User | None = None, version: int | None = None, **owns: int) -> Team:
    """Set what a team owns, by name of type."""
    made.refresh_from_db()
    for name in owns:
        kind(name)
    entries = [QuotaEntry(name, amount) for name, amount in owns.items()]
    at_version = made.version if version is None else version
    services.set_quota(team=made, entries=entries, actor=actor, at=NOON, version=at_version)
    made.refresh_from_db()
    return made


def kind(name: str = "H100", **more: Any) -> AcceleratorType:
    found = AcceleratorType.objects.filter(name=name).first()
    return found or inventory.create_accelerator_type(
        name=name, actor=None, at=NOON, **{"tdp_w": 700.0, **more}
    )


def client(user: User | None = None) -> APIClient:
    """Somebody at the API; nobody without a user."""
    made = APIClient()
    if user is not None:
        made.force_authenticate(user)
    return made
