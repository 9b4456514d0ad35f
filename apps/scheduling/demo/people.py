"""The demo's teams and people. Passwords and tokens are made afresh on every installation."""

import json
import os
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from apps.scheduling.demo.facility import TYPES
from apps.teams import services as teams
from apps.teams.models import FacilityRole, MemberRole, Team, User
from apps.teams.services import QuotaEntry

# Devices owned, in the order of TYPES; what a team does not give to its sub-teams it keeps back and lends.
_TREE: Final = (
    ("campus", None, (1024, 1024, 1024)),
    ("research", "campus", (576, 576, 512)),
    ("vision", "research", (256, 192, 160)),
    ("language", "research", (224, 256, 160)),
    ("speech", "research", (64, 96, 128)),
    ("products", "campus", (384, 384, 448)),
    ("search", "products", (192, 192, 192)),
    ("ads", "products", (160, 128, 224)),
)
LEAF_TEAMS: Final = ("vision", "language", "speech", "search", "ads")


@dataclass(frozen=True, slots=True)
class _Person:
    username: str
    full_name: str
    facility_role: str = FacilityRole.NONE
    team: str = ""
    member_role: str = ""


_PEOPLE: Final = (
    _Person("admin", "Ada Admin", FacilityRole.ADMIN),
    _Person("otto", "Otto Operator", FacilityRole.OPERATOR),
    _Person("petra", "Petra Power", FacilityRole.POWER_ADMIN),
    _Person("audrey", "Audrey Auditor", FacilityRole.AUDITOR),
    _Person("rosa", "Rosa Research", team="research", member_role=MemberRole.LEAD),
    _Person("vera", "Vera Vision", team="vision", member_role=MemberRole.LEAD),
    _Person("max", "Max Vision", team="vision", member_role=MemberRole.MEMBER),
    _Person("lena", "Lena Language", team="language", member_role=MemberRole.LEAD),
    _Person("tom", "Tom Speech", team="speech", member_role=MemberRole.MEMBER),
    _Person("sam", "Sam Search", team="search", member_role=MemberRole.MEMBER),
    _Person("ava", "Ava Ads", team="ads", member_role=MemberRole.MEMBER),
    _Person("guest", "Gus Guest"),
)


def build(at: datetime) -> list[dict[str, str]]:
    """Teams and people; what to sign in with, an entry a person."""
    by_name: dict[str, Team] = {}
    for name, parent, _ in _TREE:
        above = by_name[parent] if parent else None
        by_name[name] = teams.create_team(name=name, parent=above, actor=None, at=at)
    return [_person(person, by_name, at) for person in _PEOPLE]


def entitle(at: datetime) -> None:
    """What each team owns; once the accelerator types are there."""
    changes = []
    for name, _, owned in _TREE:
        team = Team.objects.get(name=name)
        entries = [QuotaEntry(t.name, n) for t, n in zip(TYPES, owned, strict=True)]
        changes.append(teams.QuotaChange(team.pk, tuple(entries), team.version))
    teams.set_quotas(changes=changes, actor=None, at=at, reason="as agreed")


def _person(person: _Person, by_name: dict[str, Team], at: datetime) -> dict[str, str]:
    password = secrets.token_urlsafe(9)
    user = teams.create_user(
        username=person.username,
        password=password,
        facility_role=person.facility_role,
        email=f"{person.username}@example.org",
        full_name=person.full_name,
        actor=None,
        at=at,
    )
    if person.team:
        teams.set_member(
            team_id=by_name[person.team].pk, user=user, role=person.member_role, actor=None, at=at
        )
    _, secret = teams.create_token(user=user, name="demo", at=at)
    role = person.facility_role or person.member_role or "viewer"
    return {
        "username": person.username,
        "password": password,
        "role": str(role),
        "team": person.team,
        "token": secret,
    }


def user_of_team(name: str) -> User:
    """The person in whose name the demo submits a team's work."""
    return User.objects.filter(memberships__team__name=name).order_by("memberships__role", "id")[0]


def draft_accounts(accounts: list[dict[str, str]], path: Path) -> None:
    """Write the accounts beside their place, for the owner of the installation alone to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(path)
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(accounts, file, indent=1)


def publish_accounts(path: Path) -> None:
    """Put the draft in its place; also when the last try died between the commit and this."""
    draft = _draft_of(path)
    if draft.exists():
        draft.replace(path)


def _draft_of(path: Path) -> Path:
    return path.with_suffix(".draft")
