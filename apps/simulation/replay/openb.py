"""Alibaba's openb: pods of mixed GPU needs arrive at an empty cluster one by one and stay; how much gets allocated?

The protocol is the one of the published comparison (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): the pod
list is shuffled, then pods drawn with replacement are added until the requested GPUs would pass 130 % of the
capacity; a pod that does not fit is dropped. Where each pod goes is the engine's own choice.
"""

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Final, Protocol

import numpy as np

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import NONE, Ask, Facility, Gang, Kind, Placing, Shape
from apps.scheduling.engine.fragments import Fragments, demand_of
from apps.scheduling.engine.frame import frame_of
from apps.scheduling.engine.placement import Terms, place
from apps.scheduling.engine.quota import QuotaTree
from apps.scheduling.engine.state import Floor, State, charge_of

LOAD: Final = 1.3  # requested GPUs at the end, as a share of capacity
MARKS: Final = (0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
FIRST_SEED: Final = 42
MILLI: Final = 1000
MIB: Final = 1024


class BadTrace(ValueError):
    """A trace that cannot be read; the message says where."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpus: float
    memory_gib: float
    n_gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Pod:
    cpus: float
    memory_gib: float
    n_gpus: int
    gpu_milli: int  # of each GPU; below 1000 only for one GPU
    models: tuple[str, ...]  # empty: any

    @property
    def request_milli(self) -> int:
        """GPUs asked for, in thousandths."""
        return self.n_gpus * self.gpu_milli


def _number(row: dict[str, str], key: str, line: int) -> int:
    text = row.get(key)
    if text is None or not text.isdigit():
        raise BadTrace(f"line {line}: {key} is not a whole number: {text!r}")
    return int(text)


def read_nodes(lines: Iterable[str]) -> list[TraceNode]:
    """Nodes that have GPUs; the protocol knows no others."""
    nodes = []
    for line, row in enumerate(csv.DictReader(lines), 2):
        n_gpus = _number(row, "gpu", line)
        if n_gpus:
            cpus, memory = _number(row, "cpu_milli", line), _number(row, "memory_mib", line)
            nodes.append(TraceNode(row["sn"], cpus / MILLI, memory / MIB, n_gpus, row["model"]))
    return nodes


def read_pods(lines: Iterable[str]) -> list[Pod]:
    """Pods in the order of the file."""
    pods = []
    for line, row in enumerate(csv.DictReader(lines), 2):
        n_gpus, milli = _number(row, "num_gpu", line), _number(row, "gpu_milli", line)
        models = tuple(sorted(model for model in (row.get("gpu_spec") or "").split("|") if model))
        if n_gpus > 1 and milli != MILLI:
            raise BadTrace(f"line {line}: {n_gpus} GPUs with a share of {milli} each")
        cpus, memory = _number(row, "cpu_milli", line), _number(row, "memory_mib", line)
        pods.append(Pod(cpus / MILLI, memory / MIB, n_gpus, milli if n_gpus else 0, models))
    return pods


def workload(pods: Sequence[Pod], n_gpus: int, chance: random.Random) -> list[Pod]:
    """The pods in random order, then more of them at random, until the request would pass the load."""
    wanted_milli = LOAD * n_gpus * MILLI
    arrivals: list[Pod] = []
    asked = 0
    # A list that asks for more than the load by itself is thinned at random: its shuffled order is cut.
    for pod in chance.sample(list(pods), len(pods)):
        if asked + pod.request_milli > wanted_milli:
            return arrivals
        arrivals.append(pod)
        asked += pod.request_milli
    if not asked:
        return arrivals
    while True:
        pod = chance.choice(pods)
        if asked + pod.request_milli > wanted_milli:
            return arrivals
        arrivals.append(pod)
        asked += pod.request_milli


class Packer(Protocol):
    """Chooses where a pod goes, and remembers that it is there."""

    def place(self, pod: Pod) -> Placing | None:
        """Where it goes, or None if it fits nowhere."""


class EnginePacker:
    """The engine's own packing, one pod after another on a state that is kept."""

    def __init__(self, nodes: Sequence[TraceNode], pods: Sequence[Pod] = ()) -> None:
        n = len(nodes)
        models = sorted({node.model for node in nodes})
        # A type nobody prefers is taken in this order: the rarest first, so that the common one stays whole.
        totals = {model: sum(node.n_gpus for node in nodes if node.model == model) for model in models}
        models.sort(key=lambda model: (totals[model], model))
        none = np.full(n, NONE, dtype=np.int64)
        self.facility = Facility(
            kinds=tuple(Kind(position, model) for position, model in enumerate(models)),
            domains=(),
            node_id=np.arange(n, dtype=np.int64),
            node_name=tuple(node.name for node in nodes),
            kind=np.array([models.index(node.model) for node in nodes], dtype=np.int64),
            n_devices=np.array([node.n_gpus for node in nodes], dtype=np.int64),
            cpus=np.array([node.cpus for node in nodes]),
            memory_gib=np.array([node.memory_gib for node in nodes]),
            scale_up=none,
            leaf=none,
            power=none,
            cooling=none,
            storage=none,
            idle_w=np.zeros(n),
            speed=np.ones(n),
            cluster=np.zeros(n, dtype=np.int64),
        )
        self._models = models
        self._frame = frame_of(self.facility)
        self._tree = QuotaTree((), len(models))
        self._state = State.empty(self._frame, self._tree, 0.0)
        self._gangs: dict[Pod, Gang] = {}
        demand = demand_of((self._gang(pod) for pod in pods if pod.n_gpus), len(models))
        fragments = Fragments(self._frame, demand) if demand.has_shares else None
        self._terms = Terms(np.ones(n, dtype=bool), fragments=fragments)
        self._hopeless: set[Pod] = set()  # nothing is ever given back, so what failed once fails again

    def place(self, pod: Pod) -> Placing | None:
        if pod in self._hopeless:
            return None
        gang = self._gang(pod)
        floor = Floor((self._state,))
        kinds = gang.shape.asks[0].kinds if pod.n_gpus else (0,)
        trials = (place(self._frame, gang.shape, kind, floor, self._terms) for kind in kinds)
        # No pod ranks the models it accepts; of two that are as good the rarer one is taken.
        best = min((found for found in trials if found is not None), key=lambda f: f.score or 0, default=None)
        if best is None:
            self._hopeless.add(pod)
            return None
        self._state.charge(self._frame, self._tree, charge_of(self._frame, self._tree, gang, best.placing), 1)
        return best.placing

    def _gang(self, pod: Pod) -> Gang:
        if pod not in self._gangs:
            kinds = tuple(
                position
                for position, model in enumerate(self._models)
                if not pod.models or model in pod.models
            )
            is_shared = pod.n_gpus == 1 and pod.gpu_milli < MILLI
            ask = Ask(
                devices=0 if is_shared else pod.n_gpus,
                share_steps=pod.gpu_milli * (SHARE_STEPS // MILLI) if is_shared else 0,
                cpus=pod.cpus,
                memory_gib=pod.memory_gib,
                kinds=kinds if pod.n_gpus else (),
            )
            self._gangs[pod] = Gang(id=0, name="", shape=Shape((ask,)))
        return self._gangs[pod]


@dataclass
class Round:
    """One seed: what arrived, what was placed, and how much was allocated when the request reached each mark."""

    seed: int
    n_gpus: int
    n_pods: int = 0
    arrived_milli: int = 0
    allocated_milli: int = 0
    failed: dict[str, int] = field(
        default_factory=lambda: {"cpu_only": 0, "fractional": 0, "one_gpu": 0, "multi_gpu": 0}
    )
    alloc_pct_at: dict[float, float] = field(default_factory=dict)

    def count(self, pod: Pod, *, is_placed: bool) -> None:
        self.n_pods += 1
        self.arrived_milli += pod.request_milli
        if is_placed:
            self.allocated_milli += pod.request_milli
        else:
            self.failed[_class_of(pod)] += 1
        for mark in MARKS:
            if mark not in self.alloc_pct_at and self.arrived_milli >= mark * self.n_gpus * MILLI:
                self.alloc_pct_at[mark] = self.alloc_pct

    @property
    def alloc_pct(self) -> float:
        """Allocated GPUs now, in % of all."""
        return 100 * self.allocated_milli / (self.n_gpus * MILLI)

    def summary(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "pods": self.n_pods,
            "failed": dict(self.failed),
            "alloc_pct_at_100": self.alloc_pct_at.get(1.0),
            "alloc_pct_at": {str(round(100 * mark)): pct for mark, pct in self.alloc_pct_at.items()},
            "alloc_pct_end": self.alloc_pct,
        }


def _class_of(pod: Pod) -> str:
    if not pod.n_gpus:
        return "cpu_only"
    if pod.gpu_milli < MILLI:
        return "fractional"
    return "one_gpu" if pod.n_gpus == 1 else "multi_gpu"


def play(
    nodes: Sequence[TraceNode],
    pods: Sequence[Pod],
    seed: int,
    packer_of: Callable[[Sequence[TraceNode], Sequence[Pod]], Packer] = EnginePacker,
) -> Iterator[Round]:
    """Let the pods of one seed arrive; yields the round after each of them."""
    chance = random.Random(seed)  # noqa: S311 - a protocol's dice, no secret
    n_gpus = sum(node.n_gpus for node in nodes)
    arrivals = workload(pods, n_gpus, chance)
    shuffled = chance.sample(list(nodes), len(nodes))  # the order in which equally good nodes are taken
    packer = packer_of(shuffled, pods)
    now = Round(seed, n_gpus)
    for pod in arrivals:
        now.count(pod, is_placed=packer.place(pod) is not None)
        yield now


def summary(rounds: Sequence[Round]) -> dict[str, object]:
    """All rounds together."""
    at_100 = [one.alloc_pct_at[1.0] for one in rounds if 1.0 in one.alloc_pct_at]
    return {
        "alloc_pct_at_100": mean(at_100) if at_100 else None,
        "alloc_pct_at_100_mean": mean(at_100) if at_100 else None,
        "alloc_pct_at_100_deviation": stdev(at_100) if len(at_100) > 1 else 0.0,
        "seeds": [one.summary() for one in rounds],
    }
