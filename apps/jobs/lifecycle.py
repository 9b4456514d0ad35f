"""Which state of a job follows which: one table, and nothing else decides."""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    PREEMPTING = "preempting"
    NODE_LOST = "node_lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class Trigger(StrEnum):
    """What moves a job. People and the scheduler ask; execution reports."""

    ALLOCATE = "allocate"  # the scheduler granted devices
    STARTED = "started"  # execution saw it run
    START_FAILED = "start_failed"  # it never ran, through no fault of its own; another try follows
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"  # execution saw it gone after a stop, or it never held anything
    PAUSE = "pause"
    PAUSED = "paused"
    PREEMPT = "preempt"
    VACATED = "vacated"  # execution saw it gone after a pre-emption or a pause
    LOSE_NODE = "lose_node"
    REQUEUE = "requeue"


HOLDING: Final = frozenset(
    {State.STARTING, State.RUNNING, State.PAUSING, State.PREEMPTING}
)  # states in which a job has an open allocation
ENDED: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMED_OUT})

_ENDS: Final = {
    Trigger.SUCCEEDED: State.SUCCEEDED,
    Trigger.FAILED: State.FAILED,
    Trigger.TIMED_OUT: State.TIMED_OUT,
    Trigger.CANCELLED: State.CANCELLED,
}

TABLE: Final[dict[State, dict[Trigger, State]]] = {
    State.QUEUED: {
        Trigger.ALLOCATE: State.STARTING,
        Trigger.CANCELLED: State.CANCELLED,
    },
    State.STARTING: {
        Trigger.STARTED: State.RUNNING,
        Trigger.START_FAILED: State.QUEUED,
        Trigger.PREEMPT: State.PREEMPTING,
        Trigger.LOSE_NODE: State.NODE_LOST,
        **_ENDS,
    },
    State.RUNNING: {
        Trigger.PAUSE: State.PAUSING,
        Trigger.PREEMPT: State.PREEMPTING,
        Trigger.LOSE_NODE: State.NODE_LOST,
        **_ENDS,
    },
    # A job that ends by itself while it is being paused or pre-empted has ended by itself.
    State.PAUSING: {Trigger.PAUSED: State.PAUSED, Trigger.LOSE_NODE: State.NODE_LOST, **_ENDS},
    State.PAUSED: {Trigger.REQUEUE: State.QUEUED, Trigger.CANCELLED: State.CANCELLED},
    State.PREEMPTING: {Trigger.VACATED: State.QUEUED, Trigger.LOSE_NODE: State.NODE_LOST, **_ENDS},
    State.NODE_LOST: {Trigger.REQUEUE: State.QUEUED, Trigger.CANCELLED: State.CANCELLED},
    State.SUCCEEDED: {},
    State.FAILED: {},
    State.CANCELLED: {},
    State.TIMED_OUT: {},
}


class WrongState(Exception):
    """The table knows no such move."""

    def __init__(self, state: State, trigger: Trigger) -> None:
        super().__init__(f"a job that is {state} cannot {trigger}")
        self.state, self.trigger = state, trigger


def follow(state: State, trigger: Trigger) -> State:
    """Return the state that follows; raise WrongState when none does."""
    try:
        return TABLE[state][trigger]
    except KeyError:
        raise WrongState(state, trigger) from None
