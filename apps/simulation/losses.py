"""Where the device-seconds go: every one of them into exactly one bucket.

Devices that a job holds are split by what the job did: `productive`, `starting` (restart), `checkpoint`, `rework`
(cut before it was saved), `straggling` (the slowest member set the pace), `curtailed` (a power cap did) and `paused`
(kept for a job that paused). What a job did until it was cancelled or timed out counts as productive: the device did
what it was asked.

Devices that nobody holds are split by the state of their node first: `failed` (cooling down included), `drained`,
`reserved` (an open reservation that nobody uses). What is left could be used, so the queue is asked, in its order:
each waiting job lays claim to as many free devices of one type it accepts as it wants, and its reason names the
bucket: `quota`, `power`, `reserved` (an open or coming reservation is in its way), `held` (a protected job is in its
way, or it gathers devices of which there are not enough yet), `fragmentation` (there are enough, but not in a shape
it can use). Devices that no waiting job claims are `no_demand`; jobs that wait for a dependency, a time, a release or
the start of their own reservation claim nothing.

Exact: device time is counted in millionths of devices and in fractions of a second.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import NONE, Booking, Facility, Placing, Wait
from apps.scheduling.idle import Want, claim, in_floats
from apps.simulation.replay.heap import exact
from apps.simulation.replay.progress import Split
from apps.simulation.world import SimJob

BUCKETS: Final = (
    "productive",
    "starting",
    "checkpoint",
    "rework",
    "staging",
    "straggling",
    "curtailed",
    "paused",
    "power",
    "held",
    "fragmentation",
    "quota",
    "reserved",
    "drained",
    "failed",
    "no_demand",
)
USABLE, RESERVED, DRAINED, FAILED = range(4)
_BUCKET_OF_STATE: Final = {RESERVED: "reserved", DRAINED: "drained", FAILED: "failed"}


class Ledger:
    """Counts device time by bucket. What passes without anything happening after it is not counted."""

    def __init__(self, facility: Facility, bookings: Sequence[Booking], jobs: Sequence[SimJob]) -> None:
        self._jobs = jobs
        self._kind = facility.kind.tolist()
        self._steps = [n * SHARE_STEPS for n in facility.n_devices.tolist()]
        self._state = [USABLE] * len(self._kind)
        self._held = [0] * len(self._kind)
        self._bookings = bookings
        self._nominal = [
            exact(facility.kinds[kind].speed) * max(Fraction(1), exact(speed))
            for kind, speed in zip(self._kind, facility.speed.tolist(), strict=True)
        ]
        # Free steps by state and kind, kept up with every change.
        self._free = [[0] * len(facility.kinds) for _ in range(4)]
        for kind, steps in zip(self._kind, self._steps, strict=True):
            self._free[USABLE][kind] += steps
        self._total = dict.fromkeys(BUCKETS, Fraction(0))
        self._pending = dict.fromkeys(BUCKETS, Fraction(0))
        self._rates: list[tuple[str, int]] = []
        self._since = Fraction(0)

    @property
    def n_steps(self) -> int:
        """Millionths of devices in the facility, failed ones included."""
        return sum(self._steps)

    # -- what changes -------------------------------------------------------------------------------

    def hold(self, placing: Placing, sign: int) -> None:
        """Devices are taken (1) or given back (-1)."""
        for share in placing:
            steps = sign * share.share_steps * len(share.devices)
            self._held[share.node] += steps
            self._free[self._state[share.node]][self._kind[share.node]] -= steps

    def node_state(self, node: int, state: int) -> None:
        free, kind = self._steps[node] - self._held[node], self._kind[node]
        self._free[self._state[node]][kind] -= free
        self._state[node] = state
        self._free[state][kind] += free

    def attempt(self, placing: Placing, speed: Fraction, rate: Fraction, split: Split) -> None:
        """A part of an attempt is over (or the simulation is): count what its devices did.

        Args:
            speed: Of the slowest member.
            rate: What a power cap left of that.
        """
        n_steps = straggling = Fraction(0)
        for share in placing:
            steps = share.share_steps * len(share.devices)
            n_steps += steps
            straggling += steps * (1 - speed / self._nominal[share.node])
        self._total["productive"] += split.work_s * (n_steps - straggling) * rate
        self._total["curtailed"] += split.work_s * (n_steps - straggling) * (1 - rate)
        self._total["straggling"] += split.work_s * straggling
        self._total["starting"] += split.starting_s * n_steps
        self._total["checkpoint"] += split.checkpoint_s * n_steps
        self._total["rework"] += split.rework_s * n_steps

    def staging(self, placing: Placing, seconds: Fraction) -> None:
        """Devices were held while data was on its way."""
        self._total["staging"] += seconds * sum(share.share_steps * len(share.devices) for share in placing)

    def paused(self, placing: Placing, seconds: Fraction) -> None:
        """Devices were kept for a job that paused."""
        self._total["paused"] += seconds * sum(share.share_steps * len(share.devices) for share in placing)

    # -- time ---------------------------------------------------------------------------------------

    def pass_time(self, now: Fraction) -> None:
        """Count free devices up to now, as they were judged last."""
        span = now - self._since
        if span:
            for bucket, steps in self._rates:
                self._pending[bucket] += steps * span
            self._since = now

    def commit(self) -> None:
        """Something happened: the time up to now belongs to the simulation."""
        for bucket, amount in self._pending.items():
            if amount:
                self._total[bucket] += amount
                self._pending[bucket] = Fraction(0)

    def judge(self, now_s: float, waits: Iterable[Wait], running: Iterable[SimJob]) -> None:
        """Say why each free device is free from now on."""
        rates: dict[str, int] = {}
        for state, bucket in _BUCKET_OF_STATE.items():
            rates[bucket] = rates.get(bucket, 0) + sum(self._free[state])
        free = list(self._free[USABLE])
        for index, booking in enumerate(self._bookings):
            if booking.kind == NONE or not booking.start_s <= now_s < booking.end_s:
                continue
            used = sum(job.device_steps for job in running if job.gang.shape.reservation == index)
            unused = max(0, min(booking.n_devices * SHARE_STEPS - used, free[booking.kind]))
            free[booking.kind] -= unused
            rates["reserved"] += unused
        for _, bucket, steps in claim(free, self._wants(waits)):
            rates[bucket] = rates.get(bucket, 0) + steps
        rates["no_demand"] = sum(free)
        self._rates = [(bucket, steps) for bucket, steps in rates.items() if steps]

    def _wants(self, waits: Iterable[Wait]) -> Iterator[Want]:
        for wait in waits:
            job = self._jobs[wait.job_id]
            shape = job.gang.shape
            kinds = shape.asks[0].kinds
            yield Want(wait.code, job.device_steps, kinds, names_reservation=shape.reservation != NONE)

    # -- report -------------------------------------------------------------------------------------

    def report(self, horizon: Fraction) -> dict[str, float]:
        """Device-seconds by bucket, as floats whose sum is exactly the capacity, in whatever order they are added."""
        totals = {bucket: self._total[bucket] / SHARE_STEPS for bucket in BUCKETS}
        return in_floats(totals, Fraction(self.n_steps, SHARE_STEPS) * horizon)

    @property
    def held_and_free(self) -> Fraction:
        """All that was counted, in device-seconds; equals the capacity."""
        return sum(self._total.values(), Fraction(0)) / SHARE_STEPS
