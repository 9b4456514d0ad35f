"""The words, icons and colours of states, reasons and tiers: what the pages say for what the code knows."""

from dataclasses import dataclass
from typing import Final

from apps.inventory.models import Health
from apps.jobs.lifecycle import State
from apps.power.models import AlarmKind
from apps.power.response import Phase
from apps.power.telemetry.facts import How


@dataclass(frozen=True)
class Word:
    """How one state is shown: colour never speaks alone, so there is a label and an icon too."""

    label: str
    icon: str
    tone: str = ""


@dataclass(frozen=True)
class ReasonWord:
    """How one reason to wait is shown: its tile on the queue page, and who can do something about it."""

    tile: str
    icon: str
    title: str
    who_can_act: str


@dataclass(frozen=True)
class Tile:
    """Reasons that a reader of the queue need not tell apart."""

    key: str
    label: str
    colour: str


STATES: Final[dict[str, Word]] = {
    State.QUEUED: Word("Queued", "clock"),
    State.STARTING: Word("Starting", "player-play", "info"),
    State.RUNNING: Word("Running", "player-play", "ok"),
    State.PAUSING: Word("Pausing", "player-pause", "pause"),
    State.PAUSED: Word("Paused", "player-pause", "pause"),
    State.PREEMPTING: Word("Being preempted", "arrow-back-up", "warn"),
    State.NODE_LOST: Word("Node lost", "alert-triangle", "bad"),
    State.SUCCEEDED: Word("Succeeded", "circle-check", "ok"),
    State.FAILED: Word("Failed", "x", "bad"),
    State.TIMED_OUT: Word("Out of time", "x", "bad"),
    State.CANCELLED: Word("Cancelled", "ban"),
}
HELD: Final = Word("Held", "lock")
STOPPING: Final = Word("Stopping", "ban", "warn")
SLOWED: Final = Word("Slowed", "trending-down", "warn")

# Tone and icon of what the watchdog found, the gravest first.
ALARMS: Final[dict[str, tuple[str, str]]] = {
    AlarmKind.OVER_LIMIT: ("bad", "bolt"),
    AlarmKind.CONTROLLER_SILENT: ("bad", "plug"),
    AlarmKind.WATCHDOG_BLIND: ("bad", "alert-triangle"),
    AlarmKind.STALE_READINGS: ("warn", "activity"),
}

HEALTH: Final[dict[str, Word]] = {
    Health.HEALTHY: Word("Healthy", "circle-check", "ok"),
    Health.SUSPECT: Word("Suspect", "alert-triangle", "warn"),
    Health.DRAINING: Word("Draining", "tool", "warn"),
    Health.DRAINED: Word("Drained", "tool"),
    Health.FAILED: Word("Failed", "server-off", "bad"),
}

OUTCOMES: Final[dict[str, Word]] = {
    "": Word("Not settled", "clock"),
    "met": Word("Met", "circle-check", "ok"),
    "partial": Word("Partly met", "alert-triangle", "warn"),
    "missed": Word("Missed", "circle-x", "bad"),
    "cancelled": Word("Cancelled", "ban"),
    "opted_out": Word("Opted out", "ban"),
}
METHODS: Final = {
    "meter_before": "mean of the 15 minutes before the notice",
    "10_of_10": "10 of 10: the same hours of the last ten days like it",
    "3_plus_2": "3 + 2: three hours before the event and two after it",
}


def on_fewer(n_replicas: int) -> str:
    """How a job goes on that gives some of its replicas up."""
    return f"save, then go on with {n_replicas} {'replica' if n_replicas == 1 else 'replicas'}"


LEVERS: Final = {"cap": "capped", "shrink": "shrunk", "pause": "paused", "stop": "stopped"}

TILES: Final = (
    Tile("place", "No place fits", "purple"),
    Tile("quota", "Team at quota", "gold"),
    Tile("power", "Power", "verm"),
    Tile("line", "Behind others", "slate"),
    Tile("reservation", "Reservation ahead", "blue"),
    Tile("later", "Not yet", "mist"),
)


@dataclass(frozen=True)
class LossGroup:
    """Buckets of the losses ledger that are shown as one; the groups sum to the capacity."""

    key: str
    label: str
    colour: str
    buckets: tuple[str, ...]
    is_lost: bool = True


LOSS_GROUPS: Final = (
    LossGroup("productive", "Productive", "green", ("productive",), is_lost=False),
    LossGroup(
        "overhead",
        "Overhead of running",
        "orange",
        ("starting", "checkpoint", "rework", "staging", "crossing", "straggling"),
    ),
    LossGroup("shape", "Stranded by shape", "purple", ("fragmentation",)),
    LossGroup("plan", "Held for a plan", "blue", ("held", "reserved")),
    LossGroup("quota", "Kept idle by quota", "gold", ("quota",)),
    LossGroup("power", "Power", "verm", ("power", "paused")),
    LossGroup("out", "Out of service", "slate", ("drained", "failed")),
    LossGroup("none", "No demand", "mist", ("no_demand",), is_lost=False),
)
BUCKETS: Final[dict[str, str]] = {
    "productive": "Productive",
    "starting": "Starting",
    "checkpoint": "Writing checkpoints",
    "rework": "Lost and done again",
    "staging": "Held while data came",
    "crossing": "Slower across domains",
    "straggling": "Waiting for stragglers",
    "power": "Capped or held for power",
    "paused": "Paused",
    "held": "Held for a plan",
    "fragmentation": "No place fits",
    "quota": "Nobody was allowed",
    "reserved": "Reserved and unused",
    "drained": "Drained",
    "failed": "Failed",
    "no_demand": "No demand",
}

REASONS: Final[dict[str, ReasonWord]] = {
    "topology": ReasonWord(
        "place", "topology-star-3", "Topology", "You: ask for fewer, or for a wider spread."
    ),
    "resources": ReasonWord(
        "place", "cpu", "Free devices", "You: accept another type. Else it clears with time."
    ),
    "unhealthy": ReasonWord("place", "heartbeat", "Healthy devices", "An operator."),
    "member_limit": ReasonWord("quota", "user", "Member's limit", "Your team lead."),
    "quota": ReasonWord("quota", "users-group", "Quota", "Your team lead."),
    "power": ReasonWord("power", "bolt", "Power", "It clears with time. An operator can raise the limit."),
    "priority": ReasonWord(
        "line", "list-numbers", "Line", "It clears with time. Your lead can raise the priority."
    ),
    "reservation": ReasonWord(
        "reservation", "calendar-event", "Reservations", "You: declare a shorter limit."
    ),
    "staging": ReasonWord("later", "database", "Data", "It clears when the data has arrived."),
    "not_before": ReasonWord("later", "clock", "Start time", "You: you asked for it."),
    "dependency": ReasonWord("later", "link", "Dependencies", "You: it waits for a job you named."),
    "held": ReasonWord("later", "lock", "Hold", "Whoever holds it."),
}
UNKNOWN_REASON: Final = ReasonWord("later", "hourglass", "Other", "It clears with time.")
NO_DECISION_YET: Final = "The scheduler has not looked at it yet."

TIERS: Final = ("firm", "flex 10 %", "flex 25 %", "flex 50 %", "interruptible")

EVENT_ICONS: Final = (
    ("job.submitted", "user"),
    ("job.started", "player-play"),
    ("job.held", "lock"),
    ("job.released", "lock-open"),
    ("job.stop", "ban"),
    ("job.succeeded", "circle-check"),
    ("job.failed", "x"),
    ("job.timed_out", "x"),
    ("job.cancelled", "ban"),
    ("job.preempt", "arrow-back-up"),
    ("job.mov", "arrow-back-up"),
    ("job.node_lost", "alert-triangle"),
    ("allocation", "route"),
    ("node", "server-2"),
    ("quota", "users-group"),
    ("team", "users-group"),
    ("reservation", "calendar-event"),
    ("token", "key"),
    ("power", "bolt"),
    ("demand_response", "bolt"),
    ("curtailment", "trending-down"),
    ("programme", "bolt"),
    ("policy", "adjustments"),
)


# What everybody may know of an end; the free text behind it is for the job's team.
ENDS: Final[dict[str, str]] = {
    "stopped": "Stopped by a person.",
    "cancelled": "Cancelled.",
    "time_limit": "Its time limit was used up.",
    "exit_code": "Its command ended with an error.",
    "failed": "It failed.",
    "start_failed": "It could not be started.",
    "node_lost": "It lost its nodes too often.",
    "dependency_never_satisfied": "A job it waited for did not succeed.",
}


def reason(code: str) -> ReasonWord:
    return REASONS.get(code, UNKNOWN_REASON)


def codes_of_tile(key: str) -> tuple[str, ...]:
    """The reason codes a tile stands for."""
    return tuple(code for code, word in REASONS.items() if word.tile == key)


def event_icon(kind: str) -> str:
    """The icon of the most specific prefix of an event's kind."""
    return next((icon for prefix, icon in EVENT_ICONS if kind.startswith(prefix)), "info-circle")


def tier(flexibility: object) -> str:
    """The word for a flexibility tier."""
    if isinstance(flexibility, int) and 0 <= flexibility < len(TIERS):
        return TIERS[flexibility]
    return TIERS[0]


PHASES: Final[dict[Phase, Word]] = {
    Phase.SCHEDULED: Word("Scheduled", "clock", ""),
    Phase.NOTIFIED: Word("Announced", "bell", "info"),
    Phase.RAMPING: Word("Ramping", "trending-down", "warn"),
    Phase.ACTIVE: Word("Active", "bolt", "warn"),
    Phase.RECOVERING: Word("Recovering", "refresh", "info"),
    Phase.COMPLETED: Word("Completed", "circle-check", "ok"),
    Phase.CANCELLED: Word("Cancelled", "ban", ""),
}


@dataclass(frozen=True)
class KnownBy:
    """How a load is known, as a badge and as the end of a sentence."""

    label: str
    icon: str
    tone: str
    sentence: str


_KNOWN_BY: Final[dict[How, KnownBy]] = {
    How.METER: KnownBy("Metered", "circle-check", "ok", "its meter says so"),
    How.BELOW: KnownBy("Metered below", "circle-check", "ok", "the meters below it, added up"),
    How.SIBLINGS: KnownBy(
        "Estimated", "alert-triangle", "warn", "the meter above it, less the ones beside it"
    ),
    How.CAPS: KnownBy(
        "Estimated", "alert-triangle", "warn", "its nodes at rest, and the caps that are acknowledged"
    ),
    How.UNCAPPED: KnownBy("Missing", "x", "bad", "nothing is heard of it, so no cap is counted on"),
    How.RESERVED: KnownBy("Modelled", "activity", "", "no meter is read; what runs there, as it is modelled"),
}


def known_by(how: How) -> KnownBy:
    return _KNOWN_BY[how]
