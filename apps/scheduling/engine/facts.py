"""What the engine is told and what it answers: plain values, arrays over nodes, no object of any database.

Positions (`*_index`, and every plain `int` that points at a node, kind, domain or team) are positions in the
tuples and arrays of one Snapshot. Ids cross the edge, positions do not. Times are seconds on one axis chosen by the
caller (virtual seconds in a simulation, epoch seconds live). Names serve sentences alone; nothing is decided by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.jobs.spec import SHARE_STEPS

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

NONE = -1  # "no such position"


@dataclass(frozen=True, slots=True)
class Kind:
    """An accelerator type."""

    id: int
    name: str
    memory_gib: float = 0.0
    tdp_w: float = 0.0
    idle_w: float = 0.0
    speed: float = 1.0
    caps: tuple[
        tuple[float, float], ...
    ] = ()  # (share of TDP, throughput) it can be set to, the highest first


@dataclass(frozen=True, slots=True)
class Domain:
    """A subtree of the network, power, cooling or storage tree."""

    id: int
    name: str
    kind: str
    parent: int = NONE
    limit_w: float = inf  # as set: at the meter for kind `facility`, IT load for all others
    overhead_fixed_w: float = 0.0  # meter = fixed + k x IT load
    overhead_k: float = 1.0

    @property
    def it_limit_w(self) -> float:
        """The limit as IT load."""
        return (self.limit_w - self.overhead_fixed_w) / self.overhead_k


@dataclass(frozen=True, eq=False)
class Facility:
    """Nodes in canonical order: of two nodes that are equally good the earlier one is taken."""

    kinds: tuple[Kind, ...]
    domains: tuple[Domain, ...]
    node_id: IntArray  # (n,)
    node_name: tuple[str, ...]
    kind: IntArray  # (n,) position in kinds
    n_devices: IntArray  # (n,)
    cpus: FloatArray  # (n,) inf: no limit
    memory_gib: FloatArray  # (n,) inf: no limit
    scale_up: IntArray  # (n,) position in domains, NONE: the node is its own
    leaf: IntArray  # (n,)
    power: IntArray  # (n,) its lowest power domain
    cooling: IntArray  # (n,)
    storage: IntArray  # (n,)
    idle_w: FloatArray  # (n,) host at rest
    speed: FloatArray  # (n,)
    cluster: IntArray  # (n,) id of its cluster; 0 where that means nothing

    @property
    def n_nodes(self) -> int:
        return len(self.node_id)

    @cached_property
    def lowest(self) -> tuple[IntArray, ...]:
        """The lowest domain of each tree, per node."""
        return (self.scale_up, self.leaf, self.power, self.cooling, self.storage)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far apart the replicas of a group lie over domains of one kind; exactly one of the bounds is set."""

    over: str
    max_skew: int | None = (
        None  # most replicas in one domain less fewest, over all domains that could hold one
    )
    max_per_domain: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What each replica of one group needs."""

    n_replicas: int = 1
    devices: int = 1  # whole devices of one node
    share_steps: int = 0  # or this many millionths of one device
    cpus: float = 0.0
    memory_gib: float = 0.0
    kinds: tuple[
        int, ...
    ] = ()  # accepted kinds, best first; already filtered by memory; empty: none is acceptable
    any_kind: bool = False  # it names no kinds: of two that end it at the same time neither is preferred
    required: str | None = None  # all replicas of the group within one domain of this kind
    preferred: str | None = None
    peak_w: float | None = None  # per device under load; None: TDP
    power_w: float | None = None
    n_min: int | None = None  # elastic: bounds; None: n_replicas
    n_max: int | None = None
    spread: Spread | None = None
    max_wait_s: float = 0.0  # a place wider than `preferred` is taken only after the job has waited so long

    @property
    def least(self) -> int:
        """Replicas below which the group does not run."""
        return self.n_replicas if self.n_min is None else self.n_min

    @property
    def most(self) -> int:
        """Replicas beyond which the group does not grow."""
        return self.n_replicas if self.n_max is None else self.n_max


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that decides where a job fits. Build each distinct one once: identity is used to remember failures."""

    asks: tuple[Ask, ...]
    cluster: int = NONE  # id of the only cluster it may use
    reservation: int = NONE  # position of the reservation it names


@dataclass(frozen=True, slots=True)
class Saving:
    """How a job keeps its work: after every `interval_s` of running a checkpoint takes `cost_s`; each new start of a
    job that ran before spends `restart_s`; so does each change of its size spend both, if that is how it is made."""

    interval_s: float
    cost_s: float = 0.0
    restart_s: float = 0.0
    on_resize: bool = False


@dataclass(frozen=True, slots=True)
class Gang:
    """A job that waits (or runs)."""

    id: int
    name: str
    shape: Shape
    team: int = NONE
    user: int = NONE
    priority: int = 0
    submitted_s: float = 0.0
    sequence: int = 0  # what was logged first, or the canonical order of a scenario; unique
    limit_s: float = inf  # running time it may still use, by its declared limit
    work_s: float = inf  # work left in seconds at full pace, where known and no limit is declared
    predicted_s: float = (
        inf  # run time to expect, from its owner's history; inf: its limit is all that is known
    )
    # Or the position of that history in the snapshot: whoever ends moves the prediction of thousands that wait.
    history: int = field(default=NONE, compare=False)
    done_s: float = 0.0  # of that run time, what earlier attempts did and kept
    not_before_s: float = -inf
    retry_s: float = -inf  # not tried again before
    deadline_s: float = inf
    is_held: bool = False
    waits_for: tuple[str, ...] = ()  # names of jobs it depends on that have not finished well yet
    preemptible: bool = True
    array: int = NONE  # id of its array
    array_max: int = 0  # jobs of that array that may run at once; 0: any number
    saving: Saving | None = None  # None: a job that is evicted starts over
    n_evictions: int = 0  # how often it was evicted already
    datasets: tuple[int, ...] = ()  # positions in the snapshot's datasets
    scaling: tuple[
        tuple[int, float], ...
    ] = ()  # (replicas, throughput relative to the preferred size), rising;
    # empty: in proportion to the replicas

    goes_first: bool = False  # an event had paused it: its power is kept for it, whatever its priority
    tier: int = 0  # 0 bears no loss of throughput, 4 any; see caps

    @property
    def is_elastic(self) -> bool:
        return any(ask.least != ask.most for ask in self.shape.asks)


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a placement: replicas of one group on one node. A fractional group has one entry a device."""

    group: int
    node: int
    n_replicas: int
    devices: tuple[int, ...]  # device indices on that node
    share_steps: int = SHARE_STEPS  # of each of these devices


Placing = tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """A job that holds devices."""

    gang: Gang
    placing: Placing
    started_s: float
    ends_s: float  # when its declared limit ends it, or its work does; inf: nobody knows
    cap: float = 1.0  # share of TDP
    is_leaving: bool = False  # asked to stop; still holds its devices
    at_risk_s: float = (
        inf  # running time that is lost if it is cut now: all since the last checkpoint; inf: all it ran
    )
    sized_s: float = -inf  # when it got its present size


@dataclass(frozen=True, slots=True)
class Team:
    """A node of the tree of teams; maps are by position of kind. A kind that is absent is not owned (or not limited
    where no team lists it)."""

    id: int
    name: str
    parent: int = NONE
    weight: float = 1.0
    entitlement: Mapping[int, int] = field(default_factory=dict)
    borrow_limit: Mapping[int, int] = field(default_factory=dict)  # absent: unlimited
    lend_limit: Mapping[int, int] = field(default_factory=dict)  # absent: unlimited
    decayed_use_s: Mapping[int, float] = field(default_factory=dict)  # device-seconds up to now, by kind


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody whose running jobs of one team are limited: their jobs are those of this team and this user."""

    team: int
    user: int  # as in `Gang.user`
    name: str = ""
    devices: Mapping[int, int] = field(default_factory=dict)  # most at once, by kind; absent: no limit
    running_jobs: int | None = None  # most at once; None: no limit
    is_named: bool = False  # the limits are this person's own, not those of every member


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation's window [start_s, end_s): either named nodes, or an amount of one kind."""

    id: int
    name: str
    start_s: float
    end_s: float
    nodes: tuple[int, ...] = ()
    kind: int = NONE
    n_devices: int = 0
    within: str | None = None  # kind of domain that must hold the whole amount
    teams: frozenset[int] = frozenset()  # positions of teams; empty: nobody (maintenance)
    is_flexible: bool = True


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set, and the storage domains that hold a copy or to which one is on its way."""

    id: int
    name: str
    size_gib: float
    at: frozenset[int] = frozenset()  # positions of storage domains
    arrives_s: Mapping[int, float] = field(default_factory=dict)  # by storage domain, of transfers under way


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A power limit that is known to change; what is in force already stands in `Domain.limit_w`."""

    at_s: float
    domain: int
    limit_w: float  # as `Domain.limit_w`; inf: none
    gives_way: bool = False  # until the domain's next change interruptible work there is paused


@dataclass(frozen=True, slots=True)
class CapChange:
    """Running work that is known to draw less, or more, from an instant on: an event is committed to, or ends."""

    at_s: float
    job_id: int
    cap: float  # share of TDP; 0: it draws no more than devices at rest


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One consistent picture of everything a pass looks at."""

    now_s: float
    facility: Facility
    is_usable: BoolArray  # (n,) takes new work: healthy, not draining, not cooling down
    is_failed: BoolArray  # (n,)
    running: tuple[Running, ...] = ()
    queue: tuple[Gang, ...] = ()
    teams: tuple[Team, ...] = ()
    members: tuple[Member, ...] = ()  # whose running jobs are limited; one a team and user
    bookings: tuple[Booking, ...] = ()
    promises: tuple["Reserve", ...] = ()  # of the last pass, for a policy that keeps them
    ended_early: bool = True  # something gave back before it was expected to: promises may move earlier
    quota_is_checked: bool = True  # False: no teams at all
    earmarks: tuple[
        "Reserve", ...
    ] = ()  # places that were freed for jobs that wait until the last of it is given back
    datasets: tuple[Dataset, ...] = ()
    staging_gib_per_s: float = 1.0  # rate of one transfer
    limit_changes: tuple[LimitChange, ...] = ()
    cap_changes: tuple[CapChange, ...] = ()
    history_s: tuple[float, ...] = ()  # by `Gang.history`: whole run time to expect; inf: nothing is known


@dataclass(frozen=True, slots=True)
class Policy:
    """How to decide. Weights and choices stand together here."""

    backfill_depth: int | None = 64  # queued jobs that hold a future reservation: 0 strict, 1 EASY, None all
    order: str = (
        "priority"  # or "submit", or "shortest": as priority, but the shortest predicted run time first
    )
    starving_s: float = 86_400.0  # with "shortest": who waited this long goes before all who did not
    starving_by_width: float = 0.0  # of that time, the share that a job is spared which asks for all there is
    keeps_promises: bool = (
        False  # a promise is never moved later, and moved earlier when something ends early
    )
    preemption: bool = True
    packing: bool = True
    shield_s: float = 0.0
    half_life_s: float = 7 * 86400.0
    backfill_order: str = (
        "queue"  # or "shortest": walk the backfill candidates by expected run time, shortest first
    )
    explain: bool = True  # find reasons and forecasts of waiting jobs
    most_evictions: int | None = 5  # a job that was evicted so often is no victim any more; None: no bound
    resizing: bool = True  # running elastic jobs may be given another size
    resizes_by_restart: bool = (
        False  # by a checkpoint and a restart: only who writes checkpoints and may be preempted
    )
    resize_dwell_s: float = (
        300.0  # an elastic job keeps a size that it got at least so long before it grows again
    )
    staging_hold_s: float = 60.0  # devices wait for data at most so long
    ageing_s: float = inf  # a job gains one step of priority for each such time that it has waited


@dataclass(frozen=True, slots=True)
class Start:
    """This job starts now, there."""

    job_id: int
    placing: Placing
    kind: int  # accelerator type it got; NONE for a job that holds no devices
    expected_end_s: float
    cap: float = 1.0
    why: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """This job waits. `code` is the first of `blocked_by`, the rules without which it would start now."""

    job_id: int
    code: str  # held, dependency, not_before, member_limit, quota, resources, topology, power, reservation, staging,
    # priority, unhealthy
    sentence: str  # with the numbers
    blocked_by: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0  # place in the queue, from 1
    expected_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reserve:
    """This waiting job is promised this start; nothing that starts before may move it later."""

    job_id: int
    start_s: float
    placing: Placing


@dataclass(frozen=True, slots=True)
class Evict:
    """This running job gives way, whole, to a job that starts on what is left; it goes back to the queue."""

    job_id: int
    for_job_id: int
    rule: str  # "priority": its priority is lower; "reclaim": it borrows what the other's team is entitled to
    lost_device_s: float  # work since its last checkpoint and its restart, times its devices


@dataclass(frozen=True, slots=True)
class Resize:
    """This running elastic job holds these devices from now on."""

    job_id: int
    placing: Placing
    for_job_id: int | None  # the job it makes room for; None: it grows
    expected_end_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """This data set is sent to this storage domain now."""

    dataset: int  # position in the snapshot's datasets
    to_domain: int
    until_s: float
    for_job_id: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Carried out in this order: evictions and shrinking, starts, growth, staging."""

    starts: tuple[Start, ...]
    waits: tuple[Wait, ...]
    reserves: tuple[Reserve, ...] = ()
    evictions: tuple[Evict, ...] = ()
    resizes: tuple[Resize, ...] = ()
    stages: tuple[Stage, ...] = ()
    next_boundary_s: float = inf  # look again then, even if nothing happens


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that a plan breaks, as the checker found it."""

    rule: str  # stable: device, gang, quota, member_limit, power, node, topology, spread, reservation, protection,
    # eviction, resize, staging, order, dependency, ...
    job_id: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """Proof that even the empty facility cannot hold a job."""

    code: str
    sentence: str  # "asks 24 H200, the facility has 16"
    facts: Mapping[str, Any] = field(default_factory=dict)
