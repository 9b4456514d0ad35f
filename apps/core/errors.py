"""The kinds of trouble that are told apart: refused, and failed outside."""

from collections.abc import Mapping, Sequence
from typing import Any


class DomainError(Exception):
    """Refused, for a reason the caller can act on: a stable code and the facts behind it.

    `errors` names the fields at fault, each as `{path, code, message}`, where fields are at fault.
    """

    code: str = "refused"
    http_status: int = 409
    errors: Sequence[Mapping[str, str]] = ()

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class Forbidden(DomainError):
    """The actor may see the thing, but not do this to it."""

    code = "forbidden"
    http_status = 403


class NotFound(DomainError):
    """There is no such thing, or none that the actor may know of."""

    code = "not_found"
    http_status = 404


class InvalidInput(DomainError):
    """Input that breaks the rules for it; every error names the field it is in."""

    code = "invalid"
    http_status = 400

    def __init__(self, errors: Sequence[Mapping[str, str]], message: str = "") -> None:
        said = "; ".join(
            f"{error['path']}: {error['message']}" if error["path"] else error["message"] for error in errors
        )
        super().__init__(message or said or "The input is not valid.")
        self.errors = tuple(errors)

    @classmethod
    def of(cls, path: str, message: str, code: str = "invalid") -> "InvalidInput":
        """One fault in one field."""
        return cls([{"path": path, "code": code, "message": message}])


class TooLarge(DomainError):
    """More than is read at once."""

    code = "too_large"
    http_status = 413


class VersionConflict(DomainError):
    """Somebody else saved meanwhile; the facts show both, so that a person can choose."""

    code = "version_conflict"
    http_status = 409

    def __init__(self, what: str, *, read: int, version: int, yours: Any, stored: Any) -> None:
        super().__init__(
            f"{what} was changed meanwhile: you read version {read}, it is at {version} now.",
            version=version,
            yours=yours,
            stored=stored,
        )
        self.errors = ({"path": "version", "code": self.code, "message": f"is {version} now, not {read}"},)


class NameTaken(DomainError):
    """Names are unique among things of a kind."""

    code = "name_taken"
    http_status = 409

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"There is a {kind} named {name!r} already.", name=name)
        self.errors = ({"path": "name", "code": self.code, "message": "is taken"},)


class OutsideError(Exception):
    """Something outside failed: a backend, a source, a mover.

    Args:
        permanent: Trying again cannot help.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent
