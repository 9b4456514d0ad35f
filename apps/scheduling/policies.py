"""Who may look how deep into the planner."""

from apps.core.errors import Forbidden
from apps.teams import policies as teams
from apps.teams.models import User


def may_read_dumps(viewer: User) -> bool:
    """A pass as a file shows what every team asks for, uses and owns: for who operates the facility or audits it."""
    return teams.may_look_after(viewer)


def require_may_read_dumps(viewer: User) -> None:
    if not may_read_dumps(viewer):
        raise Forbidden("Only operators and auditors may have a pass as a file.")


def may_see_advice(viewer: User) -> bool:
    """Which jobs could move is for who operates the facility, or audits it."""
    return teams.may_look_after(viewer)


def require_may_see_advice(viewer: User) -> None:
    if not may_see_advice(viewer):
        raise Forbidden("Only operators and auditors may see which jobs could move.")


def may_move(user: User) -> bool:
    """Has running jobs go on elsewhere."""
    return teams.may_operate(user)


def require_may_move(user: User) -> None:
    if not may_move(user):
        raise Forbidden("Only operators may have jobs move.")
