"""The only hands that write the ledger: jobs, allocations, placements and claims on devices.

The door of `apps/jobs/ledger/`. Locks are always taken in one order, so that no two callers wait for each other: jobs
by id, then allocations, then devices by id. Everything may be called twice; the second time changes nothing.
"""

from apps.jobs.ledger.allocation import Bound, Decision, Grant, Outcomes, allocate, allocate_many
from apps.jobs.ledger.attempts import (
    MAX_START_FAILURES,
    Outcome,
    allocation_ended,
    allocation_started,
    data_arrived,
)
from apps.jobs.ledger.caps import (
    CapAsk,
    CapSeen,
    PauseAsk,
    ask_caps,
    pause_jobs,
    report_caps,
    resume_job,
)
from apps.jobs.ledger.changes import hold_job, release_job, stop_job, update_job
from apps.jobs.ledger.dependencies import cancel_unsatisfiable
from apps.jobs.ledger.moves import SAVING_MARGIN_S
from apps.jobs.ledger.stopping import (
    Eviction,
    move_many,
    preempt_many,
    request_data_late_stop,
    request_displaced_stop,
    request_time_limit_stop,
    resize_many,
)
from apps.jobs.ledger.submission import MAX_JOBS_AT_ONCE, Receipt, submit_bulk, submit_job, submit_jobs

__all__ = [
    "MAX_JOBS_AT_ONCE",
    "MAX_START_FAILURES",
    "SAVING_MARGIN_S",
    "Bound",
    "CapAsk",
    "CapSeen",
    "Decision",
    "Eviction",
    "Grant",
    "Outcome",
    "Outcomes",
    "PauseAsk",
    "Receipt",
    "allocate",
    "allocate_many",
    "allocation_ended",
    "allocation_started",
    "ask_caps",
    "cancel_unsatisfiable",
    "data_arrived",
    "hold_job",
    "move_many",
    "pause_jobs",
    "preempt_many",
    "release_job",
    "report_caps",
    "request_data_late_stop",
    "request_displaced_stop",
    "request_time_limit_stop",
    "resize_many",
    "resume_job",
    "stop_job",
    "submit_bulk",
    "submit_job",
    "submit_jobs",
    "update_job",
]
