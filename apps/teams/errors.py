"""What teams refuse, and the facts behind it."""

from apps.core.errors import DomainError, Forbidden


class MoreThanOwned(DomainError):
    """Sub-teams would be entitled to more than their team owns."""

    code = "more_than_owned"

    def __init__(self, *, team: str, accelerator_type: str, owned: int, given: int) -> None:
        super().__init__(
            f"The sub-teams of {team} would be entitled to {given} {accelerator_type}; {team} owns {owned}.",
            team=team,
            accelerator_type=accelerator_type,
            owned=owned,
            given=given,
        )
        self.errors = ({"path": "entries", "code": self.code, "message": self.message},)


class CeilingAboveParent(Forbidden):
    """A lead gives a sub-team no higher priority than the team itself has."""

    code = "ceiling_above_parent"

    def __init__(self, *, team: str, parent: str, asked: int, ceiling: int) -> None:
        super().__init__(
            f"{parent} has a priority of {ceiling} at most; only an administrator gives {team} more ({asked}).",
            team=team,
            parent=parent,
            asked=asked,
            ceiling=ceiling,
        )
        self.errors = (
            {"path": "priority_ceiling", "code": self.code, "message": f"must be at most {ceiling}"},
        )


class TeamInUse(DomainError):
    code = "team_in_use"


class NotYourTeam(Forbidden):
    code = "not_your_team"


class MoreThanKeptBack(DomainError):
    """A team would lend more than it has for itself."""

    code = "more_than_kept_back"

    def __init__(self, *, team: str, accelerator_type: str, free: int, asked: int) -> None:
        super().__init__(
            f"{team} has {free} {accelerator_type} for itself in that time, and cannot lend {asked}:"
            " what it gave to sub-teams or lent already is not its own.",
            team=team,
            accelerator_type=accelerator_type,
            free=free,
            asked=asked,
        )
        self.errors = ({"path": "n_devices", "code": self.code, "message": f"must be at most {free}"},)


class RequestIsAnswered(DomainError):
    """A request for more that is not open any more."""

    code = "request_is_answered"


class LoanIsAnswered(DomainError):
    """Somebody answered meanwhile, or its time is over."""

    code = "loan_is_answered"
