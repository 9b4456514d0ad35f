"""What the engine is told of a tree of teams."""

import pytest

from apps.core import clock
from apps.inventory import services as inventory
from apps.scheduling import snapshot
from apps.teams import services as teams
from apps.teams.services import QuotaEntry

pytestmark = pytest.mark.django_db


def test_a_team_that_gave_its_devices_to_sub_teams_does_not_own_them_twice():
    at = clock.now()
    inventory.create_accelerator_type(name="H100", tdp_w=700, actor=None, at=at)
    vision = teams.create_team(name="vision", actor=None, at=at)
    train = teams.create_team(name="train", parent=vision, actor=None, at=at)
    for team, devices in ((vision, 40), (train, 24)):
        teams.set_quota(team=team, entries=[QuotaEntry("H100", devices)], actor=None, at=at, version=1)

    told = {team.name: dict(team.entitlement) for team in snapshot.take_snapshot(at).snapshot.teams}

    assert told == {"vision": {0: 16}, "train": {0: 24}}
