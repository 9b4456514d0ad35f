"""What is asked at once of several teams is what is asked of each."""

import pytest

from apps.jobs.tests.builders import person, team
from apps.teams import policies

pytestmark = pytest.mark.django_db


@pytest.fixture
def tree():
    """A division, a group in it, a team in that; and a stranger with a name of its own."""
    top = team("division", priority_ceiling=50)
    group = team("group", parent=top, priority_ceiling=10)
    leaf = team("leaf", parent=group, priority_ceiling=90)
    return top, group, leaf, team("stranger")


@pytest.mark.parametrize(
    ("place", "role", "facility_role"),
    [
        (2, "member", ""),
        (2, "lead", ""),
        (1, "member", ""),
        (0, "lead", ""),
        (3, "lead", ""),
        (0, "lead", "auditor"),
        (2, "member", "operator"),
    ],
)
def test_a_standing_is_what_the_single_questions_answer(tree, place, role, facility_role):
    user = person(tree[place], role=role, facility_role=facility_role)

    found = policies.standings_of(user, [one.name for one in tree])

    for one in tree:
        standing = found[one.name]
        assert standing.team == one
        assert standing.is_member == policies.is_member(user, one)
        assert standing.is_lead == policies.is_lead(user, one)
        assert standing.ceiling == policies.ceiling_of(one)
        assert standing.is_inner == one.children.exists()


def test_a_line_goes_up_and_not_down_or_aside(tree):
    top, group, leaf, _ = tree

    found = policies.standings_of(person(), ["group"])

    assert set(found) == {"group"}
    assert found["group"].line == {top.pk, group.pk}
    assert leaf.pk not in found["group"].line


def test_nobody_in_no_team_stands_anywhere(tree):
    standing = policies.standings_of(person(), ["leaf"])["leaf"]

    assert not standing.is_member
    assert not standing.is_lead
