"""What jobs were seen to draw: learned from readings of their own devices, and given to the planner.

Kept for each job and for its class (the person, the name), by accelerator type. Not learned from are devices that
several jobs share, jobs under a cap, and what was read before the job ran there. Node readings count where one job
holds the whole node and none of its devices is read; the host at rest is taken off.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Q

from apps.core.locks import session_lock
from apps.inventory.models import AcceleratorType
from apps.jobs.models import Job
from apps.power.models import JobPowerModel
from apps.power.telemetry.draws import (
    BIN_W,
    HIGHEST_BIN,
    Draws,
    JobPower,
    Measured,
    Source,
    measured_of,
    over_types,
    power_of,
)
from apps.scheduling.engine.facts import Ask, Kind

_FRESH: Final = timedelta(minutes=10)  # who comes later finds another job there
_JOBS_KEPT: Final = timedelta(days=30)
_CLASSES_KEPT: Final = timedelta(days=365)
_LOCK: Final = 0x706F776C  # "powl"
_LATE: Final = timedelta(minutes=2)  # a change may be committed so much later than it says

_SAMPLES: Final = """
WITH fresh AS (
    UPDATE power_nodereading SET is_learned = true WHERE NOT is_learned AND at <= %(until)s
    RETURNING node_id, index, at, draw_w
),
held AS (
    SELECT node.id AS node_id, node.idle_w, node.n_devices, node.accelerator_type_id, device.index, claim.share,
        allocation.job_id, allocation.observed_started_at AS since
    FROM inventory_node node
    JOIN inventory_device device ON device.node_id = node.id
    JOIN jobs_deviceclaim claim ON claim.device_id = device.id AND claim.released_at IS NULL
    JOIN jobs_placement placement ON placement.id = claim.placement_id
    JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id
    WHERE node.id IN (SELECT node_id FROM fresh) AND allocation.ended_at IS NULL
        AND allocation.observed_started_at IS NOT NULL AND allocation.desired_power_cap_share = 1
        AND NOT EXISTS (
            SELECT 1 FROM power_curtailmentaction action WHERE action.job_id = allocation.job_id
                AND action.lever = 'cap' AND action.state IN ('requested', 'acked', 'verified'))
),
whole AS (
    SELECT node_id, min(job_id) AS job_id, max(since) AS since, min(idle_w) AS idle_w, min(n_devices) AS n_devices,
        min(accelerator_type_id) AS accelerator_type_id
    FROM held GROUP BY node_id
    HAVING count(*) = min(n_devices) AND min(share) = 1 AND min(job_id) = max(job_id)
),
samples AS (
    SELECT held.job_id, held.accelerator_type_id, fresh.draw_w
    FROM fresh JOIN held ON held.node_id = fresh.node_id AND held.index = fresh.index
    WHERE held.share = 1 AND fresh.at >= held.since AND fresh.at > %(since)s
    UNION ALL
    SELECT whole.job_id, whole.accelerator_type_id, greatest(0, fresh.draw_w - whole.idle_w) / whole.n_devices
    FROM fresh JOIN whole ON whole.node_id = fresh.node_id
    WHERE fresh.index IS NULL AND fresh.at >= whole.since AND fresh.at > %(since)s
        AND NOT EXISTS (SELECT 1 FROM power_nodereading other
            WHERE other.node_id = fresh.node_id AND other.index IS NOT NULL AND other.at > %(since)s)
)
SELECT samples.job_id, job.user_id, job.name, samples.accelerator_type_id,
    ceil(samples.draw_w / %(bin)s - 1e-9)::int, count(*)
FROM samples JOIN jobs_job job ON job.id = samples.job_id
WHERE samples.draw_w / %(bin)s <= %(highest)s
GROUP BY 1, 2, 3, 4, 5
"""

_Key = tuple[int | None, int, str, int]  # job (None: the class), person, name, accelerator type


def learn(*, at: datetime) -> int:
    """Add what was read since the last time to the models of the jobs that ran there; returns how many changed.

    Each reading counts once, whoever calls how often. One at a time in the whole site.
    """
    with session_lock(_LOCK) as is_ours:
        return _learn(at) if is_ours else 0


@transaction.atomic
def _learn(at: datetime) -> int:
    looks: dict[_Key, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    with connection.cursor() as cursor:
        cursor.execute(
            _SAMPLES,
            {
                "until": at + timedelta(minutes=5),
                "since": at - _FRESH,
                "bin": BIN_W,
                "highest": float(HIGHEST_BIN),
            },
        )
        for job_id, user_id, name, kind_id, bin_, n in cursor.fetchall():
            looks[job_id, user_id, name, kind_id][bin_] += n
            looks[None, user_id, name, kind_id][bin_] += n
    _forget(at)
    if not looks:
        return 0
    known = _models_of(looks)
    new, old = [], []
    for key, counts in looks.items():
        row = known.get(key)
        if row is None:
            job_id, user_id, name, kind_id = key
            row = JobPowerModel(job_id=job_id, user_id=user_id, name=name, accelerator_type_id=kind_id)
            new.append(row)
        else:
            old.append(row)
        _add(row, counts, at)
    JobPowerModel.objects.bulk_create(new, batch_size=2000)
    JobPowerModel.objects.bulk_update(
        old, ["counts", "n_samples", "n_looks", "mean_w", "peak_w", "updated_at"], batch_size=500
    )
    return len(looks)


def _models_of(keys: Iterable[_Key]) -> dict[_Key, JobPowerModel]:
    told = list(keys)
    job_ids = sorted({job_id for job_id, *_ in told if job_id is not None})
    names = sorted({name for _, _, name, _ in told})
    users = sorted({user_id for _, user_id, _, _ in told})
    rows = [
        *JobPowerModel.objects.filter(job_id__in=job_ids),
        *JobPowerModel.objects.filter(job_id=None, user_id__in=users, name__in=names),
    ]
    return {(row.job_id, row.user_id, row.name, row.accelerator_type_id): row for row in rows}


def draws_of(row: JobPowerModel) -> Draws:
    return Draws({int(bin_): n for bin_, n in row.counts.items()}, row.n_looks)


def _add(row: JobPowerModel, counts: Mapping[int, int], at: datetime) -> None:
    draws = draws_of(row).with_look(counts)
    row.counts = {str(bin_): n for bin_, n in sorted(draws.counts.items())}
    row.n_samples, row.n_looks, row.updated_at = draws.n_samples, draws.n_looks, at
    row.mean_w, row.peak_w = draws.measured or (None, None)


def _forget(at: datetime) -> None:
    JobPowerModel.objects.filter(updated_at__lt=at - _JOBS_KEPT, job_id__isnull=False).delete()
    JobPowerModel.objects.filter(updated_at__lt=at - _CLASSES_KEPT).delete()


# For the planner ------------------------------------------------------------------------------------------------


class Peaks:
    """What is measured, as one process remembers it between two pictures."""

    def __init__(self) -> None:
        self._of_job: dict[int, dict[int, Measured]] = {}
        self._of_class: dict[tuple[int, str], dict[int, Measured]] = {}
        self._seen_at: datetime | None = None

    def read(self, cursor: Any, at: datetime, *, anew: bool) -> tuple[set[int], set[tuple[int, str]]]:
        """Bring it up to date; returns the jobs and the classes of which something else is known than before.

        Args:
            anew: Believe nothing of what is remembered.
        """
        before_job, before_class = self._of_job, self._of_class
        if anew:
            self._of_job, self._of_class, self._seen_at = {}, {}, None
        where, told = "", []
        if self._seen_at is not None:
            where, told = " AND updated_at > %s", [min(self._seen_at, at) - _LATE]
        cursor.execute(
            "SELECT job_id, user_id, name, accelerator_type_id, mean_w, peak_w FROM power_jobpowermodel"  # noqa: S608
            f" WHERE peak_w IS NOT NULL{where}",
            told,
        )
        jobs: set[int] = set()
        classes: set[tuple[int, str]] = set()
        for job_id, user_id, name, kind_id, mean_w, peak_w in cursor.fetchall():
            if job_id is not None:
                known = self._of_job.setdefault(job_id, {})
                if known.get(kind_id) != (mean_w, peak_w):
                    jobs.add(job_id)
            else:
                known = self._of_class.setdefault((user_id, name), {})
                if known.get(kind_id) != (mean_w, peak_w):
                    classes.add((user_id, name))
            known[kind_id] = (mean_w, peak_w)
        self._seen_at = at
        if anew:
            jobs = _differing(before_job, self._of_job)
            classes = _differing(before_class, self._of_class)
        return jobs, classes

    def of(self, job_id: int, user_id: int, name: str) -> Mapping[int, Measured]:
        """By id of the accelerator type, what is known of the job and of its class together."""
        own, of_class = self._of_job.get(job_id, {}), self._of_class.get((user_id, name), {})
        if not own and not of_class:
            return {}
        told = {kind: measured_of(own.get(kind), of_class.get(kind)) for kind in own.keys() | of_class.keys()}
        return {kind: measured for kind, measured in told.items() if measured is not None}


def _differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> set[Any]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def with_measured(
    asks: Sequence[Ask], measured: Mapping[int, Measured], kinds: Sequence[Kind]
) -> tuple[Ask, ...]:
    """The asks with what was measured in place of what was declared, where anything was.

    What is reserved is never below what was measured on any type that the job may land on; on a type where nothing
    was measured it is as declared, else by the type. Of a job with several sorts of replicas nobody knows whose
    draw was seen, so it stays as declared.
    """
    drawing = [number for number, ask in enumerate(asks) if ask.devices or ask.share_steps]
    if not measured or len(drawing) != 1:
        return tuple(asks)
    ask = asks[drawing[0]]
    if not any(kinds[k].id in measured for k in ask.kinds):
        return tuple(asks)
    power = power_over(ask, measured, kinds)
    found = list(asks)
    # Where another type's TDP is what counts, the mean says nothing of the one that was measured.
    found[drawing[0]] = replace(ask, power_w=power.mean_w, peak_w=power.peak_w)
    return tuple(found)


def power_over(ask: Ask, measured: Mapping[int, Measured], kinds: Sequence[Kind]) -> JobPower:
    """What one device of an ask draws on whichever of its types."""
    each = [
        power_of(
            measured=measured.get(kinds[k].id), power_w=ask.power_w, peak_w=ask.peak_w, tdp_w=kinds[k].tdp_w
        )
        for k in ask.kinds
    ]
    return over_types(each) if each else JobPower(0.0, 0.0, Source.TDP_DERIVED)


# For people ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypePower:
    """What one device of a type draws under a job, and by whose word.

    Attributes:
        n_looks: Moments at which the job itself was seen on that type; of_class: of all jobs of its name.
    """

    accelerator_type: str
    power: JobPower
    n_looks: int
    n_looks_of_class: int


def powers_of(job: Job) -> list[TypePower]:
    """By accelerator type that the job accepts, or was seen on, what is counted with. Two queries.

    Of a job with several groups of replicas what is declared is the highest of them.
    """
    groups: list[Mapping[str, Any]] = list(job.spec.get("groups") or [job.spec])
    named = {name for group in groups for name in group.get("accelerators") or ()}
    accepts_any = any(not group.get("accelerators") for group in groups)
    rows = JobPowerModel.objects.filter(
        Q(job_id=job.pk) | Q(job_id=None, user_id=job.user_id, name=job.name)
    ).select_related("accelerator_type")
    own: dict[int, JobPowerModel] = {}
    of_class: dict[int, JobPowerModel] = {}
    for row in rows:
        (own if row.job_id is not None else of_class)[row.accelerator_type_id] = row
    means, peaks = _declared(groups, "power_w"), _declared(groups, "peak_w")
    is_told_apart = len(groups) == 1
    found = []
    for kind in AcceleratorType.objects.order_by("name"):
        one, other = own.get(kind.pk), of_class.get(kind.pk)
        if kind.name not in named and not accepts_any and one is None:
            continue
        measured = measured_of(_measured(one), _measured(other)) if is_told_apart else None
        power = power_of(measured=measured, power_w=means, peak_w=peaks, tdp_w=kind.tdp_w)
        n_looks, n_of_class = (0 if row is None else row.n_looks for row in (one, other))
        found.append(TypePower(kind.name, power, n_looks, n_of_class))
    return found


def _measured(row: JobPowerModel | None) -> Measured | None:
    return None if row is None or row.mean_w is None or row.peak_w is None else (row.mean_w, row.peak_w)


def _declared(groups: Sequence[Mapping[str, Any]], field: str) -> float | None:
    """The highest that is declared; None if a group that draws declares nothing."""
    said = [group.get(field) for group in groups if group.get("devices", 1) > 0]
    known = [float(watts) for watts in said if watts is not None]
    return max(known) if known and len(known) == len(said) else None
