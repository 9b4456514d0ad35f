"""What one Kubernetes has, kept up to date by watches, for a process that looks every few seconds.

It tells when something has changed; it proves nothing. A stream can be behind, and two of them can be behind by
different times: whoever concludes or changes something reads that very thing again. All is listed first, by the look
itself, so that what goes wrong is told to whoever looks. A stream that broke, was refused or is too old counts as
not there, and the next look lists again, once.

Threads end when nobody has looked for a while; a process that forks leaves them behind.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock, Thread
from typing import Final, Generic, TypeVar

from apps.core import clock
from apps.core.errors import OutsideError
from apps.execution.backends.kubernetes import orders as writing
from apps.execution.backends.kubernetes.wire import Address, Item, Kind, Wire

STREAM_S: Final = 30  # how long a watch is asked for; then it is asked for again, from where it was
SILENCE_S: Final = STREAM_S + 10.0  # a connection on which nothing comes for longer is dead
RELIST_S: Final = 600.0  # a stream that lost an event without saying so is wrong for so long at most
UNREAD_S: Final = 60.0  # nobody looks any more
_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Broken(Exception):
    """The stream is no use any more; why."""


class Stream(Generic[T]):
    """What is known of all objects of one kind: by uid, what `digest` makes of each; None is not kept."""

    def __init__(
        self, address: Address, kind: Kind, digest: Callable[[Item], T | None], *, selector: str = ""
    ) -> None:
        self._address, self._kind, self._selector, self._digest = address, kind, selector, digest
        self._lock, self._listing = Lock(), Lock()
        self._known: dict[str, T] = {}
        self._epoch = 0  # of the list that holds; a thread of an earlier one has nothing to say
        self._is_live = False
        self._listed_s = self._read_s = 0.0
        self._last_fault = ""

    def list_all(self, wire: Wire) -> dict[str, T]:
        """All of them as of now, by a list alone. Raises OutsideError."""
        items, _ = wire.list_all(self._kind, self._selector)
        return self._digested(items)

    def read(self, wire: Wire) -> dict[str, T]:
        """All of them as the watch has them; a list where there is none yet, or none any more. Raises OutsideError."""
        with self._listing:
            with self._lock:
                now_s = self._read_s = clock.monotonic_s()
                if self._is_live and now_s - self._listed_s < RELIST_S:
                    return dict(self._known)
                self._is_live = False
                self._epoch += 1  # the old thread ends with its next word
            items, version = wire.list_all(self._kind, self._selector)
            known = self._digested(items)
            with self._lock:
                self._known, self._listed_s, self._is_live = known, clock.monotonic_s(), True
                name = f"watch-{self._kind}-{self._epoch}"
                thread = Thread(target=self._watch, args=(self._epoch, version), name=name, daemon=True)
                found = dict(known)
            thread.start()
            return found

    def stop(self) -> None:
        with self._lock:
            self._epoch += 1
            self._is_live = False
            self._known = {}

    def _digested(self, items: list[Item]) -> dict[str, T]:
        found = {item["metadata"]["uid"]: self._digest(item) for item in items}
        return {uid: one for uid, one in found.items() if one is not None}

    def _watch(self, epoch: int, version: str) -> None:
        fault = ""
        try:
            wire = Wire(self._address)
            try:
                while self._is_wanted(epoch):
                    version = self._follow(wire, epoch, version)
            finally:
                wire.close()
        except (OutsideError, _Broken) as error:
            fault = str(error)
        except Exception:
            _log.exception("A watch of %s ended by a fault of ours", self._kind)
        with self._lock:
            if self._epoch == epoch:
                self._is_live = False
                self._known = {}
                is_new, self._last_fault = fault != self._last_fault, fault
                if fault and is_new:
                    _log.warning("A watch of %s ended, all are listed again: %s", self._kind, fault)

    def _follow(self, wire: Wire, epoch: int, version: str) -> str:
        """Take what one connection tells; return from where the next one goes on."""
        events = wire.watch(self._kind, self._selector, since=version, stream_s=STREAM_S, silence_s=SILENCE_S)
        for event in events:
            item = event["object"]
            if event["type"] == "ERROR":
                raise _Broken(str(item.get("message") or item.get("reason") or "it does not say why"))
            version = item["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._take(epoch, event["type"], item)
            if not self._is_wanted(epoch):
                break
        return version

    def _take(self, epoch: int, what: str, item: Item) -> None:
        one = None if what == "DELETED" else self._digest(item)
        with self._lock:
            if self._epoch != epoch:
                return
            if one is None:
                self._known.pop(item["metadata"]["uid"], None)
            else:
                self._known[item["metadata"]["uid"]] = one

    def _is_wanted(self, epoch: int) -> bool:
        with self._lock:
            return self._epoch == epoch and clock.monotonic_s() - self._read_s < UNREAD_S


# What is kept of each kind -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnJob:
    """A Job of ours: whose, and which of its versions."""

    allocation_id: int
    version: str


@dataclass(frozen=True, slots=True)
class OwnPod:
    """A rank of ours: whose, which of its versions, and which devices it uses or is to use."""

    allocation_id: int
    version: str
    place: writing.Place
    is_bound: bool
    is_over: bool


@dataclass(frozen=True, slots=True)
class OtherPod:
    """A pod of somebody else that holds devices."""

    uid: str
    created_at: str
    namespace: str
    name: str
    node: str
    n_devices: int
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node: what of its Node object is looked at."""

    item: Item


def own_job(item: Item) -> OwnJob:
    return OwnJob(writing.whose(item)[0], item["metadata"]["resourceVersion"])


def own_pod(item: Item) -> OwnPod:
    return OwnPod(
        writing.whose(item)[0],
        item["metadata"]["resourceVersion"],
        writing.placement_of(item)[writing.rank_of(item)],
        bool(item["spec"].get("nodeName")),
        writing.is_over(item),
    )


def other_pod(item: Item, *, mark: str, resource: str) -> OtherPod | None:
    meta = item["metadata"]
    if (meta.get("labels") or {}).get(writing.MARK) == mark:
        return None
    n_devices = writing.gpus_of(item, resource)
    if not n_devices:
        return None
    return OtherPod(
        meta["uid"],
        meta["creationTimestamp"],
        meta["namespace"],
        meta["name"],
        item["spec"]["nodeName"],
        n_devices,
        writing.started_at(item),
    )


def node_in_short(item: Item) -> SeenNode:
    """Without what grows large: the images of a node alone can be 10 kB."""
    meta, status = item["metadata"], item["status"]
    return SeenNode(
        {
            "metadata": {key: meta[key] for key in ("name", "labels", "annotations") if key in meta},
            "spec": {"unschedulable": item["spec"].get("unschedulable")},
            "status": {
                key: status[key] for key in ("capacity", "allocatable", "conditions") if key in status
            },
        }
    )


# The watches of this process ---------------------------------------------------------------------------------------

Versions = Mapping[str, str]  # of the Job and the pods of one allocation, by uid


@dataclass(slots=True)
class Watches:
    """The streams of one cluster.

    Attributes:
        settled: By allocation, as what a run was found to need nothing but to be waited for.
    """

    key: tuple[object, ...]
    jobs: Stream[OwnJob]
    pods: Stream[OwnPod]
    others: Stream[OtherPod]
    nodes: Stream[SeenNode]
    settled: dict[int, Versions] = field(default_factory=dict)

    def stop(self) -> None:
        for stream in (self.jobs, self.pods, self.others, self.nodes):
            stream.stop()


def new_watches(address: Address, *, mark: str, resource: str) -> Watches:
    """Streams that nobody has begun to read."""
    ours = f"{writing.MARK}={mark}"

    def other(item: Item) -> OtherPod | None:
        return other_pod(item, mark=mark, resource=resource)

    return Watches(
        (address, mark, resource),
        Stream(address, Kind.JOBS, own_job, selector=ours),
        Stream(address, Kind.PODS, own_pod, selector=ours),
        Stream(address, Kind.BOUND_PODS, other),
        Stream(address, Kind.NODES, node_in_short),
    )


_lock = Lock()
_kept: dict[int, Watches] = {}


def watches_of(cluster_id: int, address: Address, *, mark: str, resource: str) -> Watches:
    """The watches of this process on a cluster; new ones where it is reached in another way than before."""
    with _lock:
        found = _kept.get(cluster_id)
        if found is not None and found.key == (address, mark, resource):
            return found
        if found is not None:
            found.stop()
        made = _kept[cluster_id] = new_watches(address, mark=mark, resource=resource)
        return made


def forget() -> None:
    """Begin as a new process does."""
    with _lock:
        for one in _kept.values():
            one.stop()
        _kept.clear()


def _after_fork() -> None:
    global _lock
    # The threads stayed behind, and a lock may be held by one of them for ever.
    _lock = Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_after_fork)
