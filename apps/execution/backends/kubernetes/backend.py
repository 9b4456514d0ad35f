"""The contract, kept by a Kubernetes.

One allocation is one Indexed Job, created suspended with its ranks gated. How nothing starts twice: a launch is claimed
by a row (`KubernetesRun`); the Job's name follows from the allocation, so that a second creation is refused; it is
resumed, and its ranks aimed and let go, only by a look that finds the row still wanting it. An end is written down only
when the Job can make no pod any more and none of its pods holds a device: a rank on a node that answers nobody is not
over, however long that takes.

Pods that are over are kept in sight by a finalizer of ours until their exit codes and logs were read, so that nothing
hangs on having watched at the right moment.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

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
from apps.execution.backends.kubernetes import orders as writing
from apps.execution.backends.kubernetes.orders import ALLOCATION, KEPT, MARK, is_gated, is_leaving, is_over
from apps.execution.backends.kubernetes.watching import (
    OtherPod,
    OwnJob,
    OwnPod,
    Watches,
    new_watches,
    watches_of,
)
from apps.execution.backends.kubernetes.wire import Address, Item, Kind, NoAnswer, Wire
from apps.execution.backends.local import n_bytes_of_a_cut_character
from apps.execution.kubernetes_models import KubernetesLog, KubernetesRun

OUR_CORDON: Final = f"{writing.DOMAIN}/cordon"
LEAVING_FOR: Final = timedelta(seconds=5)  # then a pod that nobody of us told to leave was taken away
LOG_LIMIT_BYTES: Final = 4 * 2**20  # of each rank
_IDS_A_REQUEST: Final = 200  # they stand in its address, which servers take up to 8 kB of
_ONE_BY_ONE: Final = 1000  # runs that are asked for by their ids; of more, everything is listed
_REFUSALS: Final = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError", "NodeShutdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What of a connection the backend goes by."""

    cluster_id: int
    address: Address
    mark: str
    image: str
    resource: str = "nvidia.com/gpu"
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)


class KubernetesBackend(KeptRuns[KubernetesRun]):
    """One Kubernetes."""

    _runs = KubernetesRun
    _lock_class = 0x51A3

    def __init__(self, place: Place, *, is_watching: bool = False) -> None:
        """`is_watching`: for a process that looks every few seconds; else each look lists everything."""
        self._place = place
        self._watches: Watches | None = None
        if is_watching:
            self._watches = watches_of(
                place.cluster_id, place.address, mark=place.mark, resource=place.resource
            )
        self._cluster_id = place.cluster_id
        self._ours = f"{MARK}={place.mark}"

    # Launching

    def launch(self, orders: Sequence[Order], *, at: datetime) -> dict[int, OutsideError]:
        refused: dict[int, OutsideError] = {}
        claims = self._claim(orders, refused, at)
        if not claims:
            return refused
        with self._wire() as wire:
            for order in claims:
                try:
                    body = writing.job_body(
                        order, mark=self._place.mark, image=self._place.image, resource=self._place.resource
                    )
                    wire.create_job(body)
                except NoAnswer:
                    raise
                except OutsideError as error:
                    refused[order.allocation_id] = error
        return refused

    @transaction.atomic
    def _claim(self, orders: Sequence[Order], refused: dict[int, OutsideError], at: datetime) -> list[Order]:
        self._lock()
        rows = self._rows([order.allocation_id for order in orders])
        newest = self._newest_fences([order.job_id for order in orders])
        claims = []
        for order in orders:
            row = rows.get(order.allocation_id)
            if row is not None:
                if row.created_at is None and row.ended_at is None and row.stop_asked_at is None:
                    claims.append(order)
                continue
            if order.fence <= newest.get(order.job_id, 0):
                refused[order.allocation_id] = StaleFence(
                    job_id=order.job_id, fence=order.fence, newest=newest[order.job_id]
                )
                continue
            newest[order.job_id] = order.fence
            KubernetesRun.objects.create(
                cluster_id=self._cluster_id,
                allocation_id=order.allocation_id,
                job_id=order.job_id,
                fence=order.fence,
                claimed_at=at,
                time_limit_s=order.time_limit_s,
                grace_s=order.grace_s,
            )
            claims.append(order)
        return claims

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
            self._look({row.allocation_id: row for row in asked}, at)

    def set_limits(self, limits: Mapping[int, float | None], *, at: datetime) -> None:
        live = [row for row in self._rows(list(limits)).values() if row.ended_at is None]
        if not live:
            return
        with self._wire() as wire:
            jobs = {writing.whose(job)[0]: job for job in self._read(wire, Kind.JOBS, list(limits))}
            for row in live:
                limit_s = limits[row.allocation_id]
                deadline_s = writing.deadline_s(limit_s, row.grace_s)
                job = jobs.get(row.allocation_id)
                if job is not None and job["spec"].get("activeDeadlineSeconds") != deadline_s:
                    step = {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": deadline_s}
                    if deadline_s is None:
                        step = {"op": "remove", "path": "/spec/activeDeadlineSeconds"}
                    wire.patch_job(job, [step])
                row.time_limit_s = limit_s
                row.save(update_fields=["time_limit_s"])

    # Looking

    def list_seen(self, *, at: datetime) -> list[Seen]:
        rows = KubernetesRun.objects.filter(cluster=self._cluster_id, is_forgotten=False)
        known = {row.allocation_id: row for row in rows.order_by("allocation_id")}
        if self._watches is None:
            known = self._look(known, at, is_whole=True)
        else:
            known = self._look_where_needed(self._watches, known, at)
        return [_seen(known[allocation_id]) for allocation_id in sorted(known)]

    def _look_where_needed(
        self, watches: Watches, rows: Mapping[int, KubernetesRun], at: datetime
    ) -> dict[int, KubernetesRun]:
        """Look at runs that have changed, have anything before them, or that nobody knew; leave the others."""
        with self._wire() as wire:
            wire.is_there()  # a silent watch proves nothing
            found = _versions_of(watches.jobs.read(wire), watches.pods.read(wire))
        needed = set(found) - set(rows)
        for allocation_id, row in rows.items():
            if row.ended_at is not None:
                is_needed = allocation_id in found  # something of it is left to be taken away
            else:
                seen_before = watches.settled.get(allocation_id)
                is_needed = seen_before is None or seen_before != found.get(allocation_id)
            if is_needed or self._has_ahead(row, at):
                needed.add(allocation_id)
        for allocation_id in set(watches.settled) - set(rows):
            del watches.settled[allocation_id]
        if len(needed) > _ONE_BY_ONE:
            return self._look(rows, at, is_whole=True)
        looked = self._look({key: row for key, row in rows.items() if key in needed}, at, others=needed)
        return {**rows, **looked}

    def _has_ahead(self, row: KubernetesRun, at: datetime) -> bool:
        """Whether there is something to do for it whatever the cluster says."""
        if row.ended_at is not None:
            return False
        is_to_end = row.stop_asked_at is not None or bool(row.lost_because)
        return row.started_at is None or is_to_end or self._is_overdue(row, at)

    def _read(self, wire: Wire, kind: Kind, allocation_ids: Collection[int]) -> Iterator[Item]:
        """What there is now of these."""
        ids = sorted(allocation_ids)
        for begin in range(0, len(ids), _IDS_A_REQUEST):
            some = ",".join(map(str, ids[begin : begin + _IDS_A_REQUEST]))
            yield from wire.list_all(kind, f"{self._ours},{ALLOCATION} in ({some})")[0]

    def _look(
        self,
        rows: Mapping[int, KubernetesRun],
        at: datetime,
        *,
        is_whole: bool = False,
        others: Collection[int] = (),
    ) -> dict[int, KubernetesRun]:
        """Bring these runs on, as far as the cluster lets them.

        Args:
            is_whole: Take in those that nobody knew.
            others: More allocations to take in so.
        """
        asked = {*rows, *others}
        with self._wire() as wire:
            # Jobs first: what one that is suspended has of pods can only become less.
            listed = (
                wire.list_all(Kind.JOBS, self._ours)[0] if is_whole else self._read(wire, Kind.JOBS, asked)
            )
            jobs = {writing.whose(job)[0]: job for job in listed}
            pods: dict[int, list[Item]] = defaultdict(list)
            listed = (
                wire.list_all(Kind.PODS, self._ours)[0] if is_whole else self._read(wire, Kind.PODS, asked)
            )
            for pod in listed:
                pods[writing.whose(pod)[0]].append(pod)
            known = dict(rows)
            missing = {*jobs, *pods} - set(known)
            forgotten = self._rows(missing)
            for allocation_id in missing - set(forgotten):
                item = jobs.get(allocation_id) or pods[allocation_id][0]
                known[allocation_id] = self._stranger(item, at)
            for allocation_id, row in forgotten.items():
                self._clear(wire, jobs.get(allocation_id), pods[allocation_id], row)
            for allocation_id, row in known.items():
                self._follow(wire, row, jobs.get(allocation_id), pods[allocation_id], at)
        if self._watches is not None:
            for allocation_id, row in known.items():
                self._note_rest(self._watches, row, jobs.get(allocation_id), pods[allocation_id], at)
        return known

    def _note_rest(
        self, watches: Watches, row: KubernetesRun, job: Item | None, pods: Sequence[Item], at: datetime
    ) -> None:
        """Remember what a run looks like that only runs, until a watch tells that it looks otherwise."""
        if (
            row.ended_at is None
            and job is not None
            and not self._has_ahead(row, at)
            and _only_runs(job, pods)
        ):
            watches.settled[row.allocation_id] = {
                one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in (job, *pods)
            }
        else:
            watches.settled.pop(row.allocation_id, None)

    def _stranger(self, item: Item, at: datetime) -> KubernetesRun:
        """The rows were set back to an earlier day: what runs is told, so that it is ended or followed."""
        allocation_id, job_id, fence = writing.whose(item)
        return KubernetesRun.objects.create(
            cluster_id=self._cluster_id,
            allocation_id=allocation_id,
            job_id=job_id,
            fence=fence,
            claimed_at=at,
            created_at=at,
        )

    def _follow(
        self, wire: Wire, row: KubernetesRun, job: Item | None, pods: Sequence[Item], at: datetime
    ) -> None:
        if row.ended_at is not None:
            self._clear(wire, job, pods, row)
            return
        if job is None:
            self._follow_without_job(wire, row, pods, at)
            return
        if row.created_at is None:
            row.created_at = at
            row.save(update_fields=["created_at"])
        self._note_start(row, job, pods, at)
        if writing.has_condition(job, "Complete", "Failed"):
            if all(is_over(pod) for pod in pods):
                # It can make no pod any more: to be written down before it is taken away.
                self._settle(wire, row, job, pods, at)
                self._clear(wire, job, pods, row)
            return
        self._note_loss(row, job, pods, at)
        if self._is_overdue(row, at):
            self._ask(row, row.grace_s, at, is_overtime=True)
        if row.stop_asked_at is not None or row.lost_because:
            self._end_it(wire, row, job, pods, at)
        elif not writing.has_condition(job, "FailureTarget", "SuccessCriteriaMet"):
            self._bring_on(wire, row, job, pods, at)

    def _follow_without_job(self, wire: Wire, row: KubernetesRun, pods: Sequence[Item], at: datetime) -> None:
        if row.created_at is None:
            if row.stop_asked_at is not None:
                # A creation that is still under way leaves a suspended Job, which the next looks take away.
                self._close(row, at, EndReason.NEVER_STARTED)
        elif all(is_over(pod) for pod in pods):
            if row.stop_asked_at is None and not row.lost_because:
                row.lost_because = "Its Job was deleted in Kubernetes."
            self._settle(wire, row, None, pods, at)
            self._clear(wire, None, pods, row)

    @staticmethod
    def _note_start(row: KubernetesRun, job: Item, pods: Sequence[Item], at: datetime) -> None:
        begun = {writing.rank_of(pod): said for pod in pods if (said := writing.started_at(pod)) is not None}
        if row.started_at is None and len(begun) >= int(job["spec"]["completions"]):
            row.started_at = max(begun.values())
            row.save(update_fields=["started_at"])

    @staticmethod
    def _note_loss(row: KubernetesRun, job: Item, pods: Sequence[Item], at: datetime) -> None:
        """A gang that lost a rank to the facility is ended whole; where it goes next is not the cluster's to say."""
        if row.lost_because or row.stop_asked_at is not None:
            return
        if writing.has_condition(job, "FailureTarget", "SuccessCriteriaMet"):
            return  # its own end is under way
        why = ""
        if is_leaving(job):
            why = "Its Job was deleted in Kubernetes."
        elif row.aimed_at is not None and job["spec"].get("suspend"):
            why = "Its Job was suspended in Kubernetes."
        for pod in pods:
            # A Job that fails takes its other pods away a moment before it says so.
            is_taken = is_leaving(pod) and at - writing.asked_to_leave_at(pod) > LEAVING_FOR
            if writing.has_condition(pod, "DisruptionTarget") or (is_taken and not why):
                why = _taken_away(pod)
            elif row.aimed_at is not None and is_gated(pod) and not why:
                why = "A rank of it was lost."
        if why:
            row.lost_because = why[:500]
            row.save(update_fields=["lost_because"])

    def _end_it(self, wire: Wire, row: KubernetesRun, job: Item, pods: Sequence[Item], at: datetime) -> None:
        """Suspend it, wait until nothing of it holds a device, write down how it ended."""
        if not is_leaving(job) and not job["spec"].get("suspend"):
            wire.patch_job(job, [{"op": "replace", "path": "/spec/suspend", "value": True}])
            return
        live = [pod for pod in pods if not is_over(pod)]
        if row.force_at is not None:
            left_s = max(math.ceil((row.force_at - at).total_seconds()), 1)
            for pod in live:
                # Only sooner: Kubernetes never gives a pod more time than it was first told.
                if is_leaving(pod) and pod["metadata"]["deletionGracePeriodSeconds"] > left_s:
                    wire.hasten_pod(pod, left_s)
        self._release_unbound(wire, pods)
        if live or not (is_leaving(job) or writing.has_condition(job, "Suspended")):
            return
        wire.delete_job(job)  # first: a message of ours that was delayed finds nothing to resume
        self._settle(wire, row, job, pods, at)
        self._clear(wire, None, pods, row)

    def _bring_on(
        self, wire: Wire, row: KubernetesRun, job: Item, pods: Sequence[Item], at: datetime
    ) -> None:
        """Resume it, and aim its ranks when all are there."""
        if row.aimed_at is not None:
            return
        still = KubernetesRun.objects.filter(pk=row.pk, ended_at=None, stop_asked_at=None, lost_because="")
        if not still.exists():
            return
        if job["spec"].get("suspend"):
            wire.patch_job(job, [{"op": "replace", "path": "/spec/suspend", "value": False}])
            return
        places = writing.placement_of(job)
        if {writing.rank_of(pod) for pod in pods} != set(range(len(places))):
            return
        for pod in pods:
            if is_gated(pod):
                wire.patch_pod(pod, writing.aim(places[writing.rank_of(pod)].node))
        row.aimed_at = at
        row.save(update_fields=["aimed_at"])

    def _settle(
        self, wire: Wire, row: KubernetesRun, job: Item | None, pods: Sequence[Item], at: datetime
    ) -> None:
        """Write down how it ended, with its logs."""
        for pod in pods:
            if pod["spec"].get("nodeName") and writing.started_at(pod) is not None:
                self._keep_log(row, writing.rank_of(pod), wire.log(pod, LOG_LIMIT_BYTES))
        codes = [(pod, code) for pod in pods if (code := writing.exit_code_of(pod)) is not None]
        # What failed by itself says more than what was ended because of it.
        own = next((code for pod, code in codes if code and not is_leaving(pod)), None)
        bad = next((code for _, code in codes if code), None) if own is None else own
        taken = next((_taken_away(pod) for pod in pods if is_leaving(pod)), "")
        refusal = next(filter(None, map(_refusal, pods)), "")
        conditions = {} if job is None else _reasons(job)
        is_done = "Complete" in conditions or "Failed" in conditions
        if row.stop_asked_at is not None and not is_done:
            if row.started_at is None and not codes:
                self._close(row, at, EndReason.NEVER_STARTED)
                return
            reason = EndReason.TIME_LIMIT if row.is_overtime else EndReason.STOPPED
            self._close(row, at, reason, exit_code=bad if bad is not None else 0 if codes else 137)
        elif row.lost_because:
            self._close(row, at, EndReason.LOST, message=row.lost_because)
        elif conditions.get("Failed") == "DeadlineExceeded":
            self._close(row, at, EndReason.TIME_LIMIT, exit_code=bad or 143)
        elif refusal and own is None:
            self._close(row, at, EndReason.START_FAILED, message=refusal)
        elif taken and own is None:
            # Somebody deleted a pod of it. What left with 0 then counts as completed there, and is not.
            self._close(row, at, EndReason.LOST, message=taken)
        elif "Complete" in conditions:
            self._close(row, at, EndReason.EXITED, exit_code=0)
        else:
            self._close(row, at, EndReason.EXITED, exit_code=1 if bad is None else bad)

    @staticmethod
    def _close(
        row: KubernetesRun,
        at: datetime,
        reason: EndReason,
        *,
        exit_code: int | None = None,
        message: str = "",
    ) -> None:
        row.ended_at, row.reason, row.exit_code, row.message = at, reason, exit_code, message[:1000]
        row.save(update_fields=["ended_at", "reason", "exit_code", "message"])

    def _clear(self, wire: Wire, job: Item | None, pods: Sequence[Item], row: KubernetesRun) -> None:
        """Take away what is left of a run that has ended."""
        if row.ended_at is None:
            return
        if job is not None and not is_leaving(job):
            wire.delete_job(job)
        for pod in pods:
            if is_over(pod):
                self._release(wire, pod)

    def _release_unbound(self, wire: Wire, pods: Sequence[Item]) -> None:
        for pod in pods:
            if is_leaving(pod) and not pod["spec"].get("nodeName"):
                self._release(wire, pod)  # it never ran: there is nothing to read

    @staticmethod
    def _release(wire: Wire, pod: Item) -> None:
        kept = pod["metadata"].get("finalizers") or []
        if KEPT in kept:
            others = [name for name in kept if name != KEPT]
            # As a test of the whole list: somebody else may take theirs away meanwhile; then the next look does it.
            guard = {"op": "test", "path": "/metadata/resourceVersion"}
            guard["value"] = pod["metadata"]["resourceVersion"]
            try:
                wire.patch_pod(
                    pod, [guard, {"op": "replace", "path": "/metadata/finalizers", "value": others}]
                )
            except NoAnswer:
                raise
            except OutsideError:
                return

    # Logs

    @staticmethod
    def _keep_log(row: KubernetesRun, rank: int, data: bytes) -> None:
        KubernetesLog.objects.update_or_create(run=row, rank=rank, defaults={"data": data})

    def read_log(self, allocation_id: int, *, rank: int, stream: Stream, offset: int, limit: int) -> LogChunk:
        """Kubernetes keeps both streams as one: it is told as stdout."""
        row = self._rows([allocation_id]).get(allocation_id)
        if row is None:
            return LogChunk("", 0, is_complete=False)
        is_over_now = row.ended_at is not None
        if stream == "stderr":
            return LogChunk("", 0, is_complete=is_over_now)
        if is_over_now:
            kept = KubernetesLog.objects.filter(run=row, rank=rank).first()
            whole = b"" if kept is None else bytes(kept.data)
        else:
            whole = self._live_log(allocation_id, rank)
        start = min(max(offset, 0), len(whole))
        data = whole[start : start + max(limit, 4)]
        is_at_end = start + len(data) >= len(whole)
        cut = 0 if is_over_now and is_at_end else n_bytes_of_a_cut_character(data)
        data = data[: len(data) - cut]
        return LogChunk(
            data.decode(errors="replace"), start + len(data), is_complete=is_over_now and is_at_end
        )

    def _live_log(self, allocation_id: int, rank: int) -> bytes:
        with self._wire() as wire:
            pods, _ = wire.list_all(
                Kind.PODS, f"{self._ours},{ALLOCATION}={int(allocation_id)},{writing.INDEX}={int(rank)}"
            )
            return b"".join(wire.log(pod, LOG_LIMIT_BYTES) for pod in pods[:1] if pod["spec"].get("nodeName"))

    # Surveying

    def survey(self, *, at: datetime) -> Survey:
        watches = self._watches
        with self._wire() as wire:
            version = wire.version()
            if watches is None:
                new = new_watches(self._place.address, mark=self._place.mark, resource=self._place.resource)
                nodes, others, mine = (
                    new.nodes.list_all(wire),
                    new.others.list_all(wire),
                    new.pods.list_all(wire),
                )
            else:
                nodes, others, mine = (
                    watches.nodes.read(wire),
                    watches.others.read(wire),
                    watches.pods.read(wire),
                )
        found = [one.item for one in nodes.values()]
        sizes = {node["metadata"]["name"]: self._n_devices(node) for node in found}
        return Survey(
            nodes=tuple(self._surveyed(node) for node in found),
            foreign=tuple(_uses(others.values(), mine.values(), sizes)),
            version=version,
        )

    def _n_devices(self, node: Item) -> int:
        return int(node["status"].get("allocatable", {}).get(self._place.resource, 0))

    def _surveyed(self, node: Item) -> SurveyedNode:
        labels, size = self._place.labels, node["status"].get("capacity", {})
        notes = node["metadata"].get("annotations") or {}
        is_cordoned = bool(node["spec"].get("unschedulable"))
        return SurveyedNode(
            name=node["metadata"]["name"],
            # All of them, the ill ones too: how many a node can give is for its probes to say.
            n_devices=int(size.get(self._place.resource, 0)),
            accelerator=writing.label_of(node, labels.get("accelerator", ())),
            cpus=writing.cpus_of(size["cpu"]) if "cpu" in size else None,
            memory_gib=writing.gib_of(size["memory"]) if "memory" in size else None,
            leaf=writing.label_of(node, labels.get("leaf", ())),
            spine=writing.label_of(node, labels.get("spine", ())),
            is_drained=is_cordoned,
            is_ours=is_cordoned and OUR_CORDON in notes,
            is_down=not writing.has_condition(node, "Ready"),
            reason=notes.get(OUR_CORDON, "cordoned" if is_cordoned else ""),
        )

    def drain(self, node: str, reason: str) -> None:
        """Cordon it, unless somebody else has: a cordon that is not ours is never lifted by us."""
        with self._wire() as wire:
            for found in wire.list_all(Kind.NODES, name=node)[0]:
                if not found["spec"].get("unschedulable"):
                    note = {"annotations": {OUR_CORDON: reason or "drained"}}
                    wire.patch_node(found, {"metadata": note, "spec": {"unschedulable": True}})

    def resume(self, node: str) -> None:
        with self._wire() as wire:
            for found in wire.list_all(Kind.NODES, name=node)[0]:
                if OUR_CORDON in (found["metadata"].get("annotations") or {}):
                    note = {"annotations": {OUR_CORDON: None}}
                    wire.patch_node(found, {"metadata": note, "spec": {"unschedulable": None}})

    # Probing

    def probe(self, nodes: Sequence[ProbedNode], *, at: datetime) -> list[NodeReport]:
        """What the cluster says of its nodes; one whose kubelet it does not hear has failed."""
        if not nodes:
            return []
        with self._wire() as wire:
            known = {one["metadata"]["name"]: one for one in wire.list_all(Kind.NODES)[0]}
        return [
            NodeReport(
                node=node.name,
                status="ok"
                if node.name not in known or writing.has_condition(known[node.name], "Ready")
                else "failed",
                checks=self._checks(node, known.get(node.name)),
            )
            for node in nodes
        ]

    def _checks(self, asked: ProbedNode, node: Item | None) -> tuple[NodeCheck, ...]:
        if node is None:
            return (NodeCheck("kubernetes_node", ok=False, message="Kubernetes has no node of this name."),)
        ready: Item = next(
            (one for one in node["status"].get("conditions") or [] if one["type"] == "Ready"), {}
        )
        said = f"Ready is {ready.get('status', 'unsaid')}: {ready.get('reason', '')}"[:300]
        checks = [NodeCheck("kubernetes_node", ok=ready.get("status") == "True", message=said)]
        if asked.has_accelerators:
            n_found = self._n_devices(node)
            checks.append(
                NodeCheck(
                    "device_missing",
                    ok=n_found >= asked.n_devices,
                    value=float(n_found),
                    message="Devices that its kubelet can give",
                )
            )
        return tuple(checks)

    # Within

    @contextmanager
    def _wire(self) -> Iterator[Wire]:
        wire = Wire(self._place.address)
        try:
            yield wire
        finally:
            wire.close()


def _seen(row: KubernetesRun) -> Seen:
    if row.ended_at is not None:
        state = RunState.ENDED
    elif row.created_at is None:
        state = RunState.CLAIMED
    else:
        state = RunState.STARTING if row.started_at is None else RunState.RUNNING
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


def _versions_of(jobs: Mapping[str, OwnJob], pods: Mapping[str, OwnPod]) -> dict[int, dict[str, str]]:
    """By allocation, the version of everything of it, by uid."""
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for some in (jobs, pods):
        for uid, one in some.items():
            found[one.allocation_id][uid] = one.version
    return dict(found)


def _only_runs(job: Item, pods: Sequence[Item]) -> bool:
    """Whether all ranks run, and nobody has anything else in mind."""
    ends = ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet", "Suspended")
    return (
        not is_leaving(job)
        and not job["spec"].get("suspend")
        and not writing.has_condition(job, *ends)
        and len(pods) == int(job["spec"]["completions"])
        and all(
            pod["status"].get("phase") == "Running"
            and not is_leaving(pod)
            and not is_gated(pod)
            and not writing.has_condition(pod, "DisruptionTarget")
            for pod in pods
        )
    )


def _uses(
    others: Iterable[OtherPod], mine: Iterable[OwnPod], sizes: Mapping[str, int]
) -> Iterator[ForeignUse]:
    """What pods of others hold. Kubernetes tells numbers, no indices: those that ours do not use come first."""
    bound: dict[str, set[int]] = defaultdict(set)
    coming: dict[str, set[int]] = defaultdict(set)
    for pod in mine:
        if not pod.is_over:
            (bound if pod.is_bound else coming)[pod.place.node].update(pod.place.devices)
    free = {
        node: sorted(range(n_devices), key=lambda index: (index in bound[node], index in coming[node], index))
        for node, n_devices in sizes.items()
    }
    for other in sorted(others, key=lambda one: (one.created_at, one.uid)):
        if other.node not in free:
            continue
        taken = free[other.node][: other.n_devices]
        free[other.node] = free[other.node][other.n_devices :]
        if taken:
            yield ForeignUse(
                key=other.uid,
                node=other.node,
                device_indices=tuple(sorted(taken)),
                label=f"Pod {other.namespace}/{other.name}",
                are_exact=False,
                since_at=other.started_at,
            )


def _reasons(job: Item) -> dict[str, str]:
    """Reasons of the conditions that are true."""
    found = job["status"].get("conditions") or []
    return {one["type"]: one.get("reason", "") for one in found if one["status"] == "True"}


def _taken_away(pod: Item) -> str:
    return f"Kubernetes took a rank of it away from {pod['spec'].get('nodeName') or 'the queue'}."


def _refusal(pod: Item) -> str:
    """Why a kubelet did not take it."""
    reason = str(pod["status"].get("reason") or "")
    if not reason.startswith(_REFUSALS) or writing.exit_code_of(pod) is not None:
        return ""
    return f"{pod['spec'].get('nodeName', '')} refused it: {reason}."
