"""Jobs that a power event held back: what their losses are counted by (`settings.SWITCHYARD_CURTAILED_JOBS`)."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from django.db import connection

from apps.power.settlement.losses import JobFacts

# Devices and their type as of the last attempt; a job over several types counts by the one with the least power.
_FACTS: Final = """
SELECT job.id, job.name, job.n_devices::float8, job.ended_at, kind.tdp_w, kind.power_curve
FROM jobs_job job
LEFT JOIN LATERAL (
    SELECT allocation.id FROM jobs_allocation allocation WHERE allocation.job_id = job.id
    ORDER BY allocation.fence DESC LIMIT 1
) last ON true
LEFT JOIN LATERAL (
    SELECT kind.tdp_w, kind.power_curve::text FROM jobs_placement placement
    JOIN inventory_node node ON node.id = placement.node_id
    JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
    WHERE placement.allocation_id = last.id ORDER BY kind.tdp_w, kind.id LIMIT 1
) kind ON true
WHERE job.id = ANY(%s)
"""


def facts_of_jobs(job_ids: Sequence[int]) -> Mapping[int, JobFacts]:
    """By id, of jobs that are still known."""
    with connection.cursor() as cursor:
        cursor.execute(_FACTS, [list(job_ids)])
        rows = cursor.fetchall()
    return {
        job_id: JobFacts(
            name=name,
            n_devices=n_devices,
            tdp_w=tdp_w,
            curve=tuple((cap, rate) for cap, rate in json.loads(curve)) if curve else (),
            ended_at=ended_at,
        )
        for job_id, name, n_devices, ended_at, tdp_w, curve in rows
    }
