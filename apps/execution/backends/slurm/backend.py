"""The contract, kept by a Slurm.

One allocation is one job of Slurm, pinned to the nodes and devices of its placement. Slurm then decides nothing but
the instant at which it begins.

How nothing starts twice: a launch is claimed by a row (`SlurmRun`), submitted *held*, its number is written to the row
if no other is there, and only then, by that number, it is let go. Whoever is killed, or whose answer is lost, anywhere
in between leaves at most a job that is held: the next look finds it by its name and lets it go if it is the one, or
takes it back.

Slurm forgets jobs minutes after their end and may lose all it knows; the rows do not.
"""

import logging
import os
import pwd
import stat
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from django.db import transaction

from apps.core import clock
from apps.core.errors import OutsideError
from apps.execution.backends.base import (
    EndReason,
    ForeignUse,
    LogChunk,
    NodeCheck,
    NodeReport,
    Order,
    ProbedNode,
    RunState,
    Seen,
    StaleFence,
    StopOrder,
    Stream,
    Survey,
    SurveyedNode,
)
from apps.execution.backends.kept import KeptRuns
from apps.execution.backends.local import n_bytes_of_a_cut_character
from apps.execution.backends.slurm import orders as writing
from apps.execution.backends.slurm import states
from apps.execution.backends.slurm.orders import Name, NodeRoom
from apps.execution.backends.slurm.wire import (
    Address,
    Gpus,
    JobLine,
    NoAnswer,
    NodeLine,
    SlurmError,
    Wire,
    gpu_indices,
    gpus_of,
)
from apps.execution.slurm_models import SlurmRun

OUR_DRAIN: Final = "Switchyard:"  # reasons of drains in Slurm that we asked for
MISSED_FOR: Final = timedelta(seconds=10)  # then a job that Slurm does not know is lost
ROOMS_KEPT_S: Final = 30.0  # how nodes are built changes seldom
_FOR_EVER_MINUTES: Final = 365 * 24 * 60
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What of a connection the backend goes by."""

    cluster_id: int
    address: Address
    shared_dir: Path
    mark: str
    partition: str = ""


@dataclass
class _Rooms:
    """How nodes are built, as a process knows it."""

    until_s: float = -1.0
    of_node: dict[str, NodeRoom] = field(default_factory=dict)


@dataclass
class _Built:
    """What of a cluster changes seldom, and what jobs of others hold, as a process knows it."""

    until_s: float = -1.0
    switches: dict[str, tuple[str, str]] = field(default_factory=dict)
    version: str = ""
    held: dict[int, list[tuple[str, str]]] = field(default_factory=dict)


_rooms: dict[tuple[int, Address], _Rooms] = defaultdict(_Rooms)
_built: dict[tuple[int, Address], _Built] = defaultdict(_Built)


class SlurmBackend(KeptRuns[SlurmRun]):
    """One Slurm."""

    _runs = SlurmRun
    _lock_class = 0x51A2

    def __init__(self, place: Place) -> None:
        self._place = place
        self._cluster_id = place.cluster_id

    # Launching

    def launch(self, orders: Sequence[Order], *, at: datetime) -> dict[int, OutsideError]:
        refused: dict[int, OutsideError] = {}
        claims = self._claim(orders, refused, at)
        if not claims:
            return refused
        with self._wire() as wire:
            rooms = self._rooms(wire, {one.node for order, _ in claims for one in order.replicas})
            # Of claims that are not fresh the answer got lost: their jobs are there, held, or not.
            known = self._held(wire) if any(not is_fresh for _, is_fresh in claims) else {}
            for order, is_fresh in claims:
                try:
                    self._submit(wire, order, rooms, [] if is_fresh else known.get(order.allocation_id, []))
                except NoAnswer:
                    raise
                except OutsideError as error:
                    refused[order.allocation_id] = error
        return refused

    @transaction.atomic
    def _claim(
        self, orders: Sequence[Order], refused: dict[int, OutsideError], at: datetime
    ) -> list[tuple[Order, bool]]:
        """Claims that are to be submitted, and whether each was made just now."""
        self._lock()
        rows = self._rows([order.allocation_id for order in orders])
        newest = self._newest_fences([order.job_id for order in orders])
        claims = []
        for order in orders:
            row = rows.get(order.allocation_id)
            if row is not None:
                if not row.slurm_ids and row.ended_at is None:
                    claims.append((order, False))
                continue
            if order.fence <= newest.get(order.job_id, 0):
                refused[order.allocation_id] = StaleFence(
                    job_id=order.job_id, fence=order.fence, newest=newest[order.job_id]
                )
                continue
            newest[order.job_id] = order.fence
            SlurmRun.objects.create(
                cluster_id=self._cluster_id,
                allocation_id=order.allocation_id,
                job_id=order.job_id,
                fence=order.fence,
                claimed_at=at,
                n_replicas=len(order.replicas),
                nodes=list(writing.by_node(order)),
                time_limit_s=order.time_limit_s,
                grace_s=order.grace_s,
            )
            claims.append((order, True))
        return claims

    def _submit(self, wire: Wire, order: Order, rooms: Mapping[str, NodeRoom], held: list[int]) -> None:
        """Submit what is claimed, write down its number, and let it go by that."""
        unknown = [one.node for one in order.replicas if one.node not in rooms]
        if unknown:
            raise OutsideError(f"Slurm has no node {unknown[0]}.", permanent=True)
        if order.script is None and any(one.command is None for one in order.replicas):
            self._end(
                SlurmRun.objects.get(cluster=self._cluster_id, allocation_id=order.allocation_id),
                states.End(EndReason.BAD_COMMAND, message="There is neither a command nor a script to run."),
                clock.now(),
            )
            return
        name = Name(self._place.mark, order.allocation_id, order.job_id, order.fence)
        folder = self._folder(order.allocation_id)
        self._fill(folder, order)
        ids = held or wire.submit(
            writing.body_of(order, name, rooms, folder=str(folder), partition=self._place.partition)
        )
        is_ours = SlurmRun.objects.filter(
            cluster=self._cluster_id, allocation_id=order.allocation_id, slurm_ids=[], ended_at=None
        ).update(slurm_ids=ids)
        if not is_ours:
            # It was stopped meanwhile, or somebody else has submitted it: this one must never run.
            wire.cancel(ids)
            return
        self._let_go(wire, ids)

    @staticmethod
    def _let_go(wire: Wire, ids: Sequence[int]) -> None:
        for slurm_id in ids:
            wire.update(slurm_id, {"hold": False})

    def _held(self, wire: Wire) -> dict[int, list[int]]:
        """Numbers of our jobs that are held, by allocation; of one that was submitted twice the first."""
        found: dict[int, list[int]] = defaultdict(list)
        n_parts: dict[int, int] = {}
        for line in wire.jobs():
            name = writing.name_of(line.name, self._place.mark)
            # Whether it is held Slurm says a moment later; but without a number written down nobody let it go.
            if name is not None and line.state == "PENDING":
                found[name.allocation_id].append(line.id)
        for allocation_id, ids in found.items():
            detail = wire.job(min(ids)) or {}
            # The leader of a heterogeneous job lists its components.
            listed = str(detail.get("het_job_id_set") or "")
            n_parts[allocation_id] = len(_numbers(listed)) or 1
        return {allocation_id: sorted(ids)[: n_parts[allocation_id]] for allocation_id, ids in found.items()}

    def _rooms(self, wire: Wire, nodes: Collection[str]) -> Mapping[str, NodeRoom]:
        rooms, now_s = _rooms[self._cluster_id, self._place.address], clock.monotonic_s()
        if now_s > rooms.until_s or any(node not in rooms.of_node for node in nodes):
            rooms.of_node = {
                line.name: NodeRoom(gpus_of(line.gres), line.cpus, line.memory_mib) for line in wire.nodes()
            }
            rooms.until_s = now_s + ROOMS_KEPT_S
        return rooms.of_node

    # Stopping

    def stop(self, stops: Sequence[StopOrder], *, at: datetime) -> None:
        with transaction.atomic():
            self._lock()
            rows = self._rows([stop.allocation_id for stop in stops])
            asked = []
            for stop in stops:
                row = rows.get(stop.allocation_id)
                if row is None:
                    self._mark(stop, at)
                elif row.ended_at is None and row.fence == stop.fence:
                    self._ask(row, stop.grace_s, at)
                    asked.append(row)
        if asked:
            with self._wire() as wire:
                self._urge(wire, asked, at)

    def _urge(self, wire: Wire, rows: Sequence[SlurmRun], at: datetime) -> None:
        """Carry out the stops of runs that have not ended: take back, signal, cancel."""
        waiting, polite, forced = [], [], []
        for row in rows:
            if not row.slurm_ids:
                # Whoever submits it from now on finds that it has ended.
                gone = SlurmRun.objects.filter(pk=row.pk, slurm_ids=[], ended_at=None).update(
                    ended_at=at, reason=EndReason.NEVER_STARTED
                )
                if gone:
                    row.ended_at, row.reason = at, EndReason.NEVER_STARTED
                continue
            if row.started_at is None:
                waiting.append(row)
            if row.force_at is not None and row.force_at <= at:
                forced.append(row)
            elif row.told_at is None and row.started_at is not None:
                polite.append(row)
        wire.cancel_waiting(_ids(waiting))
        over = wire.signal_running(_ids(polite), "TERM")
        wire.cancel(_ids([row for row in forced if row.forced_at is None or _is_due_again(row, at)]))
        for row in polite:
            # What was over before the signal has ended by itself.
            if not over & set(row.slurm_ids):
                row.told_at = at
        for row in (*waiting, *forced):
            row.forced_at = row.forced_at or at
        touched = {row.pk: row for row in (*waiting, *polite, *forced)}
        SlurmRun.objects.bulk_update(touched.values(), ["told_at", "forced_at"])

    def set_limits(self, limits: Mapping[int, float | None], *, at: datetime) -> None:
        rows = self._rows(list(limits))
        live = [row for row in rows.values() if row.ended_at is None]
        if not live:
            return
        with self._wire() as wire:
            for row in live:
                limit_s = limits[row.allocation_id]
                minutes = _FOR_EVER_MINUTES if limit_s is None else writing.minutes(limit_s, row.grace_s)
                for slurm_id in row.slurm_ids:
                    try:
                        wire.update(slurm_id, {"time_limit": minutes})
                    except SlurmError as error:
                        # Ours is kept by the next looks; Slurm's own, if it is shorter, would end it sooner.
                        _log.warning("The time limit of Slurm's job %s stays: %s", slurm_id, error.message)
                row.time_limit_s = limit_s
                row.save(update_fields=["time_limit_s"])

    # Looking

    def list_seen(self, *, at: datetime) -> list[Seen]:
        with self._wire() as wire:
            lines = wire.jobs()
            rows = list(
                SlurmRun.objects.filter(cluster=self._cluster_id, is_forgotten=False).order_by(
                    "allocation_id"
                )
            )
            rows += self._strangers(wire, lines, rows, at)
            by_id = {line.id: line for line in lines}
            found = {row.pk: self._lines_of(row, by_id) for row in rows}
            for row in rows:
                self._follow(wire, row, found[row.pk], at)
            urged = [row for row in rows if row.ended_at is None and row.stop_asked_at is not None]
            if urged:
                self._urge(wire, urged, at)
            return [self._seen(row, found[row.pk]) for row in rows]

    def _lines_of(self, row: SlurmRun, by_id: Mapping[int, JobLine]) -> list[JobLine]:
        """The lines of a run's jobs. A number that Slurm gave to another job since is not ours any more."""
        name = str(Name(self._place.mark, row.allocation_id, row.job_id, row.fence))
        lines = [by_id[slurm_id] for slurm_id in row.slurm_ids if slurm_id in by_id]
        return [line for line in lines if line.name == name]

    def _follow(self, wire: Wire, row: SlurmRun, lines: Sequence[JobLine], at: datetime) -> None:
        """Write down what has become of a run."""
        if row.ended_at is not None or not row.slurm_ids:
            return
        live = [line for line in lines if states.is_live(line.state)]
        if not live:
            self._settle(wire, row, at)
            return
        if row.started_at is None and any(line.state in states.RUNNING for line in live):
            row.started_at = min(
                (line.started_at for line in live if line.started_at is not None), default=at
            )
            row.save(update_fields=["started_at"])
        held = [line.id for line in live if line.state == "PENDING" and line.reason in states.HELD]
        if held and row.stop_asked_at is None and len(held) == len(live):
            self._let_go(wire, held)  # whoever wrote down the number did not come to it
        if self._is_overdue(row, at):
            with transaction.atomic():
                self._ask(row, row.grace_s, at, is_overtime=True)

    def _settle(self, wire: Wire, row: SlurmRun, at: datetime) -> None:
        """Find out how a run ended."""
        name = str(Name(self._place.mark, row.allocation_id, row.job_id, row.fence))
        details = [one for slurm_id in row.slurm_ids if (one := wire.job(slurm_id)) is not None]
        details = [one for one in details if one.get("name") == name]
        if any(states.is_live(str(one.get("job_state"))) for one in details):
            return  # it came back between the two looks, or the list was older
        record = self._record(row.allocation_id)
        if not details and record is None and not self._is_missed_for_long(row, at):
            return
        told = states.Told(
            has_begun=row.started_at is not None or self._has_begun(row.allocation_id),
            is_signalled=row.told_at is not None,
            is_cancelled=row.forced_at is not None,
            is_overtime=row.is_overtime,
        )
        end = states.end_of(details, told, record)
        at_fault = self._down(wire, row) if end.is_node_lost else [end.at_fault] if end.at_fault else []
        self._end(row, end, at, at_fault)

    @staticmethod
    def _is_missed_for_long(row: SlurmRun, at: datetime) -> bool:
        """A slurmctld that lost its memory has its nodes end what it does not know; so long they are given for it."""
        if row.missed_at is None:
            row.missed_at = at
            row.save(update_fields=["missed_at"])
        return at - row.missed_at >= MISSED_FOR

    def _has_begun(self, allocation_id: int) -> bool:
        """Whether its script began, also if nobody saw it run."""
        return os.path.lexists(self._folder(allocation_id) / "began")

    def _record(self, allocation_id: int) -> states.Record | None:
        """What the run's own script wrote down at its end."""
        try:
            with open(_open_inside(self._folder(allocation_id), "end")) as file:
                code, at_s, *more = file.read(100).split()
            at = datetime.fromtimestamp(int(at_s), UTC)
            return states.Record(int(code), at, has_begun=writing.NO_STEP not in more)
        except (OSError, ValueError):
            return None

    @staticmethod
    def _down(wire: Wire, row: SlurmRun) -> list[str]:
        mine = set(row.nodes)
        return sorted(
            node.name
            for node in wire.nodes()
            if node.name in mine and (is_down(node) or not node.is_answering)
        )

    @staticmethod
    def _end(row: SlurmRun, end: states.End, at: datetime, at_fault: Sequence[str] = ()) -> None:
        row.ended_at, row.reason = end.at or at, end.reason
        row.started_at = row.started_at or end.started_at
        row.exit_code, row.message, row.nodes_at_fault = end.exit_code, end.message[:1000], list(at_fault)
        row.save(update_fields=["ended_at", "reason", "started_at", "exit_code", "message", "nodes_at_fault"])

    def _strangers(
        self, wire: Wire, lines: Sequence[JobLine], rows: Sequence[SlurmRun], at: datetime
    ) -> list[SlurmRun]:
        """Take in jobs that bear our mark and stand in no row, and take back those that a row does not mean."""
        known = {slurm_id for row in rows for slurm_id in row.slurm_ids}
        named = [
            (line, name)
            for line in lines
            if states.is_live(line.state)
            and line.id not in known
            and (name := writing.name_of(line.name, self._place.mark)) is not None
        ]
        if not named:
            return []
        of_run = self._rows([name.allocation_id for _, name in named])
        surplus, taken = [], []
        for line, name in named:
            row = of_run.get(name.allocation_id)
            if row is None:
                # The rows were set back to an earlier day: what runs is told, so that it is ended or followed.
                row = SlurmRun(
                    cluster_id=self._cluster_id,
                    allocation_id=name.allocation_id,
                    job_id=name.job_id,
                    fence=name.fence,
                    slurm_ids=[line.id],
                    claimed_at=at,
                )
                row.save()
                of_run[name.allocation_id] = row
                taken.append(row)
            elif (row.slurm_ids and line.id not in row.slurm_ids) or row.ended_at is not None:
                surplus.append(line.id)
        wire.cancel(surplus)
        return taken

    @staticmethod
    def _seen(row: SlurmRun, lines: Sequence[JobLine]) -> Seen:
        if row.ended_at is not None:
            state = RunState.ENDED
        elif not row.slurm_ids:
            state = RunState.CLAIMED
        elif row.started_at is not None:
            state = RunState.RUNNING
        else:
            state = RunState.STARTING
        return Seen(
            allocation_id=row.allocation_id,
            job_id=row.job_id,
            fence=row.fence,
            state=state,
            started_at=row.started_at,
            ended_at=row.ended_at,
            time_limit_s=row.time_limit_s,
            exit_code=row.exit_code,
            reason=EndReason(row.reason) if row.reason else None,
            message=row.message,
            nodes_at_fault=tuple(row.nodes_at_fault),
        )

    # The shared folder

    def _folder(self, allocation_id: int) -> Path:
        return self._place.shared_dir / self._place.mark / str(int(allocation_id))

    def _fill(self, folder: Path, order: Order) -> None:
        """Write what the nodes run. Written again it is the same."""
        try:
            for path in (folder.parent, folder, folder / "work"):
                path.mkdir(mode=0o700, exist_ok=True)
                self._give(path)
            self._write(folder / "replica", writing.replica_script(order, str(folder)))
            if order.script is not None:
                self._write(folder / "script", order.script)
        except OSError as error:
            raise OutsideError(
                f"The shared folder {folder.parent.parent} refuses: {error.strerror}."
            ) from error

    def _write(self, path: Path, text: str) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o700)
        with open(handle, "w") as file:
            file.write(text)
        self._give(path)

    def _give(self, path: Path) -> None:
        """What a run's folder holds is its user's, where the site may give things away."""
        if os.geteuid() != 0 or self._place.address.user_name == "root":
            return
        try:
            user = pwd.getpwnam(self._place.address.user_name)
        except KeyError:
            raise OutsideError(
                f"The site's machine does not know the user {self._place.address.user_name}."
            ) from None
        if path != self._place.shared_dir / self._place.mark:
            os.chown(path, user.pw_uid, user.pw_gid)
        else:
            path.chmod(0o711)

    def read_log(self, allocation_id: int, *, rank: int, stream: Stream, offset: int, limit: int) -> LogChunk:
        row = self._rows([allocation_id]).get(allocation_id)
        # Looked at before the stream is read: what was written in between is not missed.
        is_over = row is not None and row.ended_at is not None
        try:
            handle = _open_inside(self._folder(allocation_id), f"{stream}.{int(rank)}")
        except FileNotFoundError:
            return LogChunk("", 0, is_complete=is_over)
        except OSError as error:
            raise OutsideError(f"The log cannot be read: {error.strerror}.") from error
        with open(handle, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(max(offset, 0), size))
            data = file.read(max(limit, 4))
            next_offset = file.tell()
        is_at_end = next_offset >= size
        cut = 0 if is_over and is_at_end else n_bytes_of_a_cut_character(data)
        if cut:
            data, next_offset = data[:-cut], next_offset - cut
        return LogChunk(data.decode(errors="replace"), next_offset, is_complete=is_over and is_at_end)

    # Surveying

    def survey(self, *, at: datetime) -> Survey:
        with self._wire() as wire:
            lines, nodes = wire.jobs(), wire.nodes()
            built = _built[self._cluster_id, self._place.address]
            if clock.monotonic_s() > built.until_s:
                built.switches, built.until_s = wire.topology(), clock.monotonic_s() + ROOMS_KEPT_S
                built.version = wire.ping()
            foreign = [
                line
                for line in lines
                if line.state in states.RUNNING and writing.name_of(line.name, self._place.mark) is None
            ]
            self._look_up(wire, built, foreign)
            gpus = {node.name: gpus_of(node.gres) for node in nodes}
            return Survey(
                nodes=tuple(self._surveyed(node, gpus[node.name], built) for node in nodes),
                foreign=tuple(use for line in foreign for use in _uses(line, built.held[line.id], gpus)),
                version=built.version,
            )

    @staticmethod
    def _look_up(wire: Wire, built: "_Built", foreign: Sequence[JobLine]) -> None:
        """Find out what jobs of others hold; what a running job holds is asked once."""
        known = {line.id: built.held[line.id] for line in foreign if built.held.get(line.id)}
        missing = {line.id for line in foreign if line.id not in known}
        built.held = known | {key: [] for key in missing} | (wire.held_gpus(missing) if missing else {})

    @staticmethod
    def _surveyed(node: NodeLine, gpus: Gpus, built: "_Built") -> SurveyedNode:
        leaf, spine = built.switches.get(node.name, ("", ""))
        kinds = sorted(set(gpus.types))
        return SurveyedNode(
            name=node.name,
            n_devices=len(gpus.types),
            accelerator=kinds[0] if len(kinds) == 1 else "",
            cpus=float(node.cpus),
            memory_gib=node.memory_mib / 1024,
            leaf=leaf,
            spine=spine,
            is_drained=node.state in ("drained", "draining", "drain", "drng"),
            is_ours=node.reason.startswith(OUR_DRAIN),
            is_down=is_down(node),
            reason=node.reason,
        )

    def drain(self, node: str, reason: str) -> None:
        with self._wire() as wire:
            wire.drain(node, f"{OUR_DRAIN} {reason}".strip())

    def resume(self, node: str) -> None:
        with self._wire() as wire:
            wire.resume(node)

    # Probing

    def probe(self, nodes: Sequence[ProbedNode], *, at: datetime) -> list[NodeReport]:
        """What slurmctld says of its nodes. One that does not answer it, somebody did not reach: that is a finding."""
        if not nodes:
            return []
        with self._wire() as wire:
            known = {line.name: line for line in wire.nodes()}
        return [
            NodeReport(
                node=node.name,
                status="failed" if (line := known.get(node.name)) is not None and is_down(line) else "ok",
                checks=_checks(node, line),
            )
            for node in nodes
        ]

    # Within

    @contextmanager
    def _wire(self) -> Iterator[Wire]:
        wire = Wire(self._place.address)
        try:
            yield wire
        finally:
            wire.close()


def _uses(line: JobLine, held: Sequence[tuple[str, str]], gpus: Mapping[str, Gpus]) -> Iterator[ForeignUse]:
    for node, gres in held:
        if node in gpus and (indices := gpu_indices(gres, gpus[node])):
            yield ForeignUse(
                key=str(line.id),
                node=node,
                device_indices=tuple(indices),
                label=f"Slurm job {line.id} of {line.user}",
                are_exact=gpus[node].is_exact,
                since_at=line.started_at,
                until_at=line.ends_at,
            )


def is_down(node: NodeLine) -> bool:
    """Whether Slurm has given the node up."""
    # Not "unknown": so are all of them for a moment after slurmctld was started.
    return node.state in ("down", "fail", "error")


def _checks(asked: ProbedNode, line: NodeLine | None) -> tuple[NodeCheck, ...]:
    if line is None:
        return (NodeCheck("slurm_node", ok=False, message="Slurm has no node of this name."),)
    checks = [NodeCheck("slurm_node", ok=not is_down(line), message=f"{line.state}: {line.reason}"[:300])]
    if asked.has_accelerators:
        found = len(gpus_of(line.gres).types)
        checks.append(
            NodeCheck(
                "device_missing", ok=found >= asked.n_devices, value=float(found), message="GPUs in Slurm"
            )
        )
    return tuple(checks)


def _ids(rows: Sequence[SlurmRun]) -> list[int]:
    return [slurm_id for row in rows for slurm_id in row.slurm_ids]


def _is_due_again(row: SlurmRun, at: datetime) -> bool:
    """A cancel whose effect is not to be seen is said again now and then."""
    assert row.forced_at is not None
    return (at - row.forced_at).total_seconds() % 10 < 1


def _numbers(listed: str) -> list[int]:
    """5-7 or 5,6,7 written out."""
    found: list[int] = []
    for piece in listed.split(","):
        first, _, last = piece.strip().partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def _open_inside(folder: Path, name: str) -> int:
    """Open a plain file of a folder that belongs to somebody else: nothing that a link leads to."""
    outer = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=outer)
    finally:
        os.close(outer)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(name)
    return handle
