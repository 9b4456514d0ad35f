"""What a backend must do. Every backend keeps this contract, and one test runs over all of them.

A run is one allocation as a backend knows it. Four promises carry everything else:

- A launch is idempotent: the second one with the same allocation id does nothing, whatever became of the
  first.
- A launch with a fence below the highest that the backend has seen for the job is refused (`StaleFence`),
  so that a message that was delayed cannot start a second copy.
- Stopping an allocation that was never launched leaves a mark, and a later launch of it does nothing. An
  end is therefore only ever reported when the backend holds a record that this run cannot begin any more.
- An end is told by `list_seen` until `forget`: a report that got lost is made again.

Losing contact raises `OutsideError`, and says nothing about what runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from apps.core.errors import OutsideError

Stream = Literal["stdout", "stderr"]


class StaleFence(OutsideError):
    """An order came with a fence that a later attempt at the same job has overtaken."""

    def __init__(self, *, job_id: int, fence: int, newest: int) -> None:
        super().__init__(
            f"Attempt {fence} at job {job_id} comes too late: attempt {newest} is known.", permanent=True
        )


class RunState(StrEnum):
    CLAIMED = "claimed"  # the launch was noted, nothing runs yet; launching again goes on from there
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a run is over, as the backend can tell it."""

    EXITED = "exited"  # by itself
    STOPPED = "stopped"  # it was told to, and left after that
    TIME_LIMIT = "time_limit"  # it was told to, because its time was up
    BAD_COMMAND = "bad_command"  # it could not be started, and the job is to blame
    START_FAILED = "start_failed"  # it could not be started, and the backend is to blame
    NEVER_STARTED = "never_started"  # stopped before it began
    LOST = "lost"  # gone without saying how


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One process of a run."""

    rank: int
    node: str
    group: str = ""
    device_indices: tuple[int, ...] = ()
    command: tuple[str, ...] | None = None  # None: the order's script
    cpus: float = 0.0  # 0: it did not say
    memory_gib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything a backend needs to run one allocation."""

    allocation_id: int
    job_id: int
    fence: int
    replicas: tuple[Replica, ...]
    script: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    time_limit_s: float | None = None  # what is left of it
    grace_s: float = 10.0
    play_s: float = 0.0  # how long a simulated backend lets it run
    cap_share: float = 1.0  # it starts under a power cap, as a share of TDP
    pace: float = 1.0  # at which a simulated backend plays it under that
    save_s: float = 0.0  # how long a simulated backend takes for a last checkpoint, where the grace allows it


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """Ask a run to end: politely now, by force `grace_s` later. The earliest force asked for counts."""

    allocation_id: int
    job_id: int
    fence: int
    grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run as the backend finds it."""

    allocation_id: int
    job_id: int
    fence: int
    state: RunState
    started_at: datetime | None = None
    ended_at: datetime | None = None
    time_limit_s: float | None = None  # in force
    exit_code: int | None = None  # 128 + n when signal n ended it
    reason: EndReason | None = None  # when it has ended
    message: str = ""
    nodes_at_fault: tuple[str, ...] = ()  # names, where the backend can tell whose fault the end was


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a stream. Offsets are bytes; a character is never cut in two."""

    text: str
    next_offset: int
    is_complete: bool  # nothing follows, and nothing will


class Backend(Protocol):
    """One cluster's way to run things. Orders come in batches, because hundreds may start in one pass."""

    def launch(self, orders: Sequence[Order], *, at: datetime) -> dict[int, OutsideError]:
        """Start these runs; return, by allocation id, those that could not be taken and why."""

    def stop(self, stops: Sequence[StopOrder], *, at: datetime) -> None:
        """Ask these runs to end. An older fence than the run's own is ignored."""

    def set_limits(self, limits: Mapping[int, float | None], *, at: datetime) -> None:
        """Change time limits, by allocation id, of runs that have not ended; None takes a limit away."""

    def list_seen(self, *, at: datetime) -> list[Seen]:
        """All runs that are not forgotten."""

    def forget(self, allocation_ids: Sequence[int]) -> None:
        """The ledger knows of these ends; logs can still be read. What has not ended is not forgotten."""

    def read_log(self, allocation_id: int, *, rank: int, stream: Stream, offset: int, limit: int) -> LogChunk:
        """Read at most `limit` bytes of what a replica wrote, from byte `offset` on."""


# Power caps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CapOrder:
    """Let the devices of a run draw no more than this share of their TDP.

    Attributes:
        fence: Of who controls power; an agent that has seen a newer one ignores it.
        lease_until_at: When the agent goes back to `back_share` by itself; None: never.
        pace: Work done in a second under the cap, in seconds at full power: what a simulated backend plays;
            `back_pace` after the lease.
    """

    allocation_id: int
    share: float
    fence: int
    lease_until_at: datetime | None = None
    back_share: float = 1.0
    pace: float = 1.0
    back_pace: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapState:
    """What is set on the devices of a run.

    Attributes:
        is_recorded: No device took it: the order is only written down, and what it draws does not change.
    """

    allocation_id: int
    share: float
    fence: int
    lease_until_at: datetime | None = None
    is_recorded: bool = False
    message: str = ""


@runtime_checkable
class Capping(Protocol):
    """A backend whose runs can be held to less power. Optional.

    The agent beside the devices keeps the cap, not whoever ordered it: when nobody is heard of any more it stays
    until its lease is over, and never goes above `back_share` by itself. A cap ends with its run.
    """

    def set_caps(self, orders: Sequence[CapOrder], *, at: datetime) -> None:
        """Send these orders; one with a fence below the newest that the run's agent has seen is ignored."""

    def list_caps(self, *, at: datetime) -> list[CapState]:
        """Caps in force, of runs that were ever sent one and have not ended; not those still being set."""


# Probing nodes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedNode:
    """A node as the facility knows it: what is found there is held against this."""

    name: str
    n_devices: int
    has_accelerators: bool  # False: its devices are no hardware of their own, but slots


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One thing that was looked at. What a failing check comes to stands in `apps/inventory/health.py`."""

    name: str
    ok: bool
    value: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a probe found on one node. `failed` and `degraded` are said where no check says what is wrong."""

    node: str
    status: Literal["ok", "degraded", "failed"] = "ok"
    checks: tuple[NodeCheck, ...] = ()


@runtime_checkable
class Probing(Protocol):
    """A backend that can tell how its nodes are. Optional: one that can not tell has no such method."""

    def probe(self, nodes: Sequence[ProbedNode], *, at: datetime) -> list[NodeReport]:
        """Look at these nodes; at most one report each, and none of a node that nothing is known of.

        Not to reach a node is no finding about it, unless somebody who did reach it says so. Changes nothing, and
        raises OutsideError where the cluster does not answer.
        """


# Surveying a cluster ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedNode:
    """A node as its cluster has it.

    Attributes:
        accelerator: Type of its devices, in the cluster's words.
        leaf, spine: Switches above it; empty: nobody says.
        is_drained: It takes no new work there.
        is_ours: That is so because we asked for it.
        is_down: The cluster has given it up.
    """

    name: str
    n_devices: int
    accelerator: str = ""
    cpus: float | None = None
    memory_gib: float | None = None
    leaf: str = ""
    spine: str = ""
    is_drained: bool = False
    is_ours: bool = False
    is_down: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignUse:
    """Devices of one node that work holds which is not ours.

    Attributes:
        key: Number of that work in its cluster.
        are_exact: These very devices; else only their number is known.
        until_at: When its own limit ends it; None: nobody knows.
    """

    key: str
    node: str
    device_indices: tuple[int, ...]
    label: str = ""
    are_exact: bool = True
    since_at: datetime | None = None
    until_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a cluster has, and what others do there."""

    nodes: tuple[SurveyedNode, ...]
    foreign: tuple[ForeignUse, ...] = ()
    version: str = ""


@runtime_checkable
class Surveying(Protocol):
    """A backend whose cluster has a life of its own: nodes are drained there, and others submit to it. Optional."""

    def survey(self, *, at: datetime) -> Survey:
        """Look at everything; cheap, for it is asked every few seconds. Raises OutsideError."""

    def drain(self, node: str, reason: str) -> None:
        """Have the cluster give a node no new work. Twice changes nothing the second time."""

    def resume(self, node: str) -> None:
        """Take back a drain that we asked for."""
