"""What a mover must do. Every mover keeps this contract, and one test runs over all of them.

A move is one transfer as a mover knows it, by its key. Four promises carry everything else:

- A start is idempotent by key: what runs is left alone, what has arrived or was cancelled stays so, and what failed or
  was lost goes on from what is there already.
- A move outlives whoever started it, and is found again by its handle.
- A target appears when it is whole, or not at all. (In an object store: it is called whole only then.)
- Cancelling what never began leaves a mark, and a later start of it does nothing.

Losing sight of a move raises `OutsideError`, and says nothing about how it fares.

Nothing here knows Django: movers' own processes run this code too.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

GIB = 2**30
LONGEST_ERROR = 500


class MoveError(Exception):
    """A move cannot go on. `permanent`: trying again would end the same way."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.message, self.permanent = message, permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a copy lies, or is to lie, within its store."""

    uri: str
    base_uri: str
    profile: str = ""  # names the keys of an object store; never the keys themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """Everything a mover needs to carry one copy over."""

    key: str  # unique everywhere: it names what lies half-done in the target store
    source: Place
    target: Place
    n_bytes: int  # as far as is known
    begins_at: datetime
    arrives_at: datetime  # as far as is known; what a simulated mover holds to
    most_bytes_per_s: float | None = None


class MoveState(StrEnum):
    UNKNOWN = "unknown"  # nothing was begun under this key
    RUNNING = "running"
    LOST = "lost"  # what carried it is gone; a start goes on from there
    FAILED = "failed"  # a start tries again
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a move is. The total is what the source was found to hold; None until it is known."""

    state: MoveState
    bytes_done: int = 0
    bytes_total: int | None = None
    bytes_per_s: float | None = None
    error: str = ""
    is_permanent: bool = False


class Mover(Protocol):
    """Carries copies from place to place."""

    is_simulated: bool

    def handle_of(self, key: str) -> str:
        """The handle that a move begun here under this key will have: to be written down before it is begun."""

    def start(self, order: MoveOrder, *, at: datetime) -> str:
        """Begin, or go on; return the handle by which the move is found again."""

    def poll(self, handle: str, *, at: datetime) -> Progress:
        """How far it is."""

    def cancel(self, handle: str, *, at: datetime) -> None:
        """End it, and take away what lies half-done. It is over when `poll` says so."""


_SECRETS = re.compile(r"(?<=//)[^/@\s]+@|(?i:(?:x-amz-[a-z-]+|[a-z_]*(?:secret|password|token)[a-z_]*)=\S+)")


def scrubbed(text: str) -> str:
    """Text from outside, fit for a person and a database: one line, no keys, no control characters."""
    line = " ".join(_SECRETS.sub("", text).split())
    return "".join(char if char.isprintable() else "?" for char in line)[:LONGEST_ERROR]
