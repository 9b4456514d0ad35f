"""What the states of Slurm mean for a run. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from apps.execution.backends.base import EndReason
from apps.execution.backends.slurm.orders import BEGAN_BEFORE, NO_FOLDER

WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
STARTING: Final = frozenset({"CONFIGURING"})
RUNNING: Final = frozenset(
    {"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"}
)
HELD: Final = ("JobHeldUser", "JobHeldAdmin")
_LOST: Final = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})


def is_live(state: str) -> bool:
    return state in WAITING or state in STARTING or state in RUNNING


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    reason: EndReason
    at: datetime | None = None
    started_at: datetime | None = None
    exit_code: int | None = None
    message: str = ""
    is_node_lost: bool = False  # a node of it went away
    at_fault: str = ""  # the node whose fault it is


@dataclass(frozen=True, slots=True)
class Told:
    """What we told it before."""

    has_begun: bool  # it was seen running
    is_signalled: bool  # while it ran, to end politely
    is_cancelled: bool
    is_overtime: bool  # because its time was up


@dataclass(frozen=True, slots=True)
class Record:
    """What the batch script wrote down when it was done."""

    exit_code: int
    at: datetime
    has_begun: bool = True  # a replica of it


def end_of(details: Sequence[Mapping[str, Any]], told: Told, record: Record | None = None) -> End:
    """How a job ended, from all that Slurm knows of it; of a heterogeneous job all components.

    Args:
        record: Its own word; Slurm's counts more where both tell of one end.
    """
    if not details:
        return _unknown_to_slurm(told, record)
    leader = details[0]
    # What failed says more than what was ended because of it.
    by_weight = sorted(details, key=lambda one: _WEIGHT.get(str(one.get("job_state")), 0))
    one = by_weight[0]
    state = str(one.get("job_state"))
    at, started_at = _instant(one.get("end_time")), _started(leader, told)
    has_begun = started_at is not None
    if record is None and state == "FAILED" and exit_code_of(one) == BEGAN_BEFORE:
        return End(EndReason.LOST, at, started_at, message="Slurm lost it, and began it a second time.")
    if record is None and state == "FAILED" and exit_code_of(one) == NO_FOLDER:
        host = str(one.get("batch_host") or "")
        return End(
            EndReason.START_FAILED, at, message=f"{host} does not see the shared folder.", at_fault=host
        )
    if state in _LOST:
        said = "Slurm gave its nodes to another job." if state == "PREEMPTED" else "Slurm lost a node of it."
        return End(EndReason.LOST, at, started_at, message=said, is_node_lost=state != "PREEMPTED")
    is_asked = told.is_signalled or told.is_cancelled
    if record is not None and not record.has_begun and not is_asked:
        return _without_step(told, record)
    code = exit_code_of(one)
    if (told.is_overtime and is_asked) or state in ("TIMEOUT", "DEADLINE"):
        return End(EndReason.TIME_LIMIT, at, started_at, code or 143)
    if record is not None and state == "CANCELLED" and not is_asked:
        return End(EndReason.EXITED, record.at, started_at or record.at, record.exit_code)
    if not has_begun:
        if is_asked:
            return End(EndReason.NEVER_STARTED, at)
        return End(EndReason.START_FAILED, at, message=f"Slurm did not start it: {_said(one)}.")
    if is_asked:
        return End(EndReason.STOPPED, at, started_at, 137 if code is None else code)
    match state:
        case "COMPLETED":
            return End(EndReason.EXITED, at, started_at, 0)
        case "CANCELLED":
            return End(EndReason.EXITED, at, started_at, code or 143, "It was cancelled in Slurm.")
        case "OUT_OF_MEMORY":
            return End(
                EndReason.EXITED, at, started_at, code or 137, "It used more memory than its nodes gave."
            )
    return End(EndReason.EXITED, at, started_at, code or 1, "" if code else f"Slurm says {_said(one)}.")


def _unknown_to_slurm(told: Told, record: Record | None) -> End:
    if record is not None:
        reason = EndReason.EXITED
        if told.is_signalled or told.is_cancelled:
            reason = EndReason.TIME_LIMIT if told.is_overtime else EndReason.STOPPED
        elif not record.has_begun:
            return _without_step(told, record)
        return End(reason, record.at, exit_code=record.exit_code)
    if told.has_begun:
        return End(EndReason.LOST, message="Slurm has lost all trace of it.")
    if told.is_cancelled:
        return End(EndReason.NEVER_STARTED)
    return End(EndReason.START_FAILED, message="Slurm has lost all trace of it.")


def _without_step(told: Told, record: Record) -> End:
    # Once it was told as running it can only be lost; either way it begins again.
    reason = EndReason.LOST if told.has_begun else EndReason.START_FAILED
    return End(reason, record.at, message="Slurm began it, but none of its replicas.")


_WEIGHT: Final = {
    "NODE_FAIL": -9, "BOOT_FAIL": -9, "PREEMPTED": -8, "OUT_OF_MEMORY": -7, "TIMEOUT": -6, "FAILED": -5,
    "CANCELLED": -1,
}  # fmt: skip


def _started(job: Mapping[str, Any], told: Told) -> datetime | None:
    # Of a job that was cancelled while it waited the start is where its end is, or in the future.
    started_at, ended_at = _instant(job.get("start_time")), _instant(job.get("end_time"))
    if started_at is None:
        return None
    if told.has_begun or (job.get("job_state") != "CANCELLED" and bool(job.get("nodes"))):
        return started_at
    return started_at if bool(job.get("nodes")) and ended_at is not None and started_at < ended_at else None


def exit_code_of(job: Mapping[str, Any]) -> int | None:
    """128 + n when signal n ended it; None where a cancelled job left none."""
    status = int(job.get("exit_code") or 0)
    if status & 127:
        return 128 + (status & 127)
    if status == 0 and job.get("job_state") == "CANCELLED":
        return None
    return status >> 8


def _said(job: Mapping[str, Any]) -> str:
    state, reason = str(job.get("job_state", "")).lower(), str(job.get("state_reason") or "")
    return f"{state}, {reason}" if reason not in ("", "None") else state


def _instant(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds else None
