"""How long a training job takes on so many devices, from measured profiles: throughput x statistical efficiency.

A step with batch size M takes a measured time, and brings the training forward by a gain that the gradients' noise
sets: with the noise scale phi and the smallest batch size M0, M examples are worth (phi + M0) / (phi + M) x M of
those of small batches. Progress is counted in steps of size M0; a job is done when it has made the progress of all
epochs of its validation profile.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021,
equations 5 to 7. The noise scale is taken as measured in each epoch; Pollux has to estimate it.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Final

import numpy as np

from apps.scheduling.engine.facts import FloatArray
from apps.simulation.replay.training import BadTrace, Elastic

N_CANDIDATES: Final = 50  # batch sizes that are looked at, as in the published simulator
SLACK: Final = 1e-8  # keeps whole quotients whole


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of a step over the batch size of one device; all rise in it."""

    local: FloatArray
    step_s: FloatArray
    sync_s: FloatArray  # part of the step in which gradients are exchanged


@dataclass(frozen=True)
class Training:
    """How well a model learns at each batch size: validation profile of one application."""

    name: str
    batches: FloatArray  # (b,) rising
    progress: FloatArray  # (e,) of each epoch, in steps of the smallest batch
    sqr: FloatArray  # (b, e) squared norm of the gradient
    var: FloatArray  # (b, e) its variance at the smallest batch size

    @property
    def smallest(self) -> int:
        return int(self.batches[0])

    @property
    def largest(self) -> int:
        return int(self.batches[-1])

    def gain(self, batch: float) -> FloatArray:
        """(e,) Progress that one step of this size makes in each epoch; between measured sizes in proportion."""
        above = min(int(np.searchsorted(self.batches, batch)), len(self.batches) - 1)
        below = max(0, above - (self.batches[above] > batch))
        span = self.batches[above] - self.batches[below]
        part = (batch - self.batches[below]) / span if span else 0.0
        sqr = (1 - part) * self.sqr[below] + part * self.sqr[above]
        var = (1 - part) * self.var[below] + part * self.var[above]
        gain: FloatArray = (var + sqr) / (var * self.smallest / batch + sqr)
        return gain


def read_trainings(lines: Iterable[str]) -> dict[str, Training]:
    """Validation profiles by application."""
    rows: dict[str, dict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(lines):
        point = (float(row["progress"]), float(row["grad_sqr"]), float(row["grad_var"]))
        rows[row["application"]][int(row["batch_size"])].append(point)
    trainings = {}
    for name, by_batch in rows.items():
        batches = sorted(by_batch)
        n_epochs = min(len(points) for points in by_batch.values())
        table = np.array([by_batch[batch][:n_epochs] for batch in batches])  # (b, e, 3)
        # An epoch is over when the slowest batch size has made its progress.
        reached = table[:, :, 0].min(axis=0)
        trainings[name] = Training(
            name,
            np.array(batches, dtype=np.float64),
            np.diff(reached, prepend=0.0),
            table[:, :, 1],
            table[:, :, 2],
        )
    return trainings


Steps = dict[tuple[int, ...], Curve]  # by placement: devices on each node, in the smallest rotation


def read_steps(placements: Iterable[str], scalability: Iterable[str]) -> dict[tuple[str, str], Steps]:
    """Times of a step by application and type of device (empty where the file tells none)."""
    points: dict[tuple[str, str], dict[tuple[int, ...], list[tuple[float, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in csv.DictReader(placements):
        placement = smallest_rotation(tuple(int(digit) for digit in row["placement"]))
        points[row["application"], row.get("gpu_type", "")][placement].append(_point(row))
    for row in csv.DictReader(scalability):
        # Where only the number of nodes is told, each node holds as many; uneven ones are not needed here.
        n_nodes, n_replicas = int(row["num_nodes"]), int(row["num_replicas"])
        if n_replicas % n_nodes == 0:
            placement = (n_replicas // n_nodes,) * n_nodes
            known = points[row["application"], row.get("gpu_type", "")]
            known.setdefault(placement, []).append(_point(row))
    return {key: {p: _curve(rows) for p, rows in known.items()} for key, known in points.items()}


def _point(row: Mapping[str, str]) -> tuple[float, float, float]:
    return float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])


def _curve(points: list[tuple[float, float, float]]) -> Curve:
    # A size that was measured twice counts with its first time.
    rows = np.array(sorted({point[0]: point for point in reversed(points)}.values()))
    return Curve(rows[:, 0], rows[:, 1], rows[:, 2])


def smallest_rotation(placement: tuple[int, ...]) -> tuple[int, ...]:
    """A ring of nodes has no first one: of all rotations the smallest stands for all."""
    return min(placement[turn:] + placement[:turn] for turn in range(len(placement)))


def packed(n_devices: int, per_node: int) -> tuple[int, ...]:
    """So many devices on as few nodes as they fit."""
    full, rest = divmod(n_devices, per_node)
    return smallest_rotation((per_node,) * full + ((rest,) if rest else ()))


class Application:
    """One model on one type of device."""

    def __init__(
        self, training: Training, steps: Steps, per_node: int, most_local: int | None = None
    ) -> None:
        self.training, self.per_node = training, per_node
        self._steps = steps
        self._most_local = (
            most_local  # batch size that the device's memory holds, where the profile goes further
        )
        self.best_s = cache(self._best_s)

    def sizes(self, most: int) -> Iterator[int]:
        """Numbers of devices that were measured, packed, up to `most`."""
        return (n for n in range(1, most + 1) if packed(n, self.per_node) in self._steps)

    def time_s(self, n_devices: int, batch: int) -> float | None:
        """From start to end with a batch size that stays; None: it does not run, or was not measured."""
        rate = self._step(n_devices, batch)
        if rate is None:
            return None
        step_s, used = rate
        return float((self.training.progress / self.training.gain(used)).sum() * step_s)

    def _best_s(self, n_devices: int) -> float | None:
        """From start to end with the best batch size in each epoch."""
        least = max(self.training.smallest, self._least_local(n_devices) * n_devices)
        if least > self.training.largest:
            return None
        candidates = {round(size) for size in np.geomspace(least, self.training.largest, N_CANDIDATES)}
        steps = [step for size in sorted(candidates) if (step := self._step(n_devices, size)) is not None]
        paces = [step_s / self.training.gain(used) for step_s, used in steps]
        return float((self.training.progress * np.min(paces, axis=0)).sum()) if paces else None

    def _least_local(self, n_devices: int) -> int:
        curve = self._steps.get(packed(n_devices, self.per_node))
        return 1 if curve is None else ceil(curve.local[0])

    def _step(self, n_devices: int, batch: int) -> tuple[float, int] | None:
        """Time of one step, and the batch size that it really has: what does not fit a device is accumulated."""
        curve = self._steps.get(packed(n_devices, self.per_node))
        if curve is None:
            return None
        most_local = min(curve.local[-1], self._most_local or curve.local[-1])
        local = ceil(batch / n_devices - SLACK)
        n_parts = ceil(local / most_local - SLACK)
        if n_devices == 1 and batch > self.training.smallest:
            n_parts = max(2, n_parts)  # one device needs two parts to see the noise of its gradients
        atomic = min(ceil(local / n_parts - SLACK), self.training.largest // (n_devices * n_parts))
        if not curve.local[0] <= atomic <= most_local:
            return None
        step_s = float(np.interp(atomic, curve.local, curve.step_s))
        sync_s = float(np.interp(atomic, curve.local, curve.sync_s))
        used = n_devices * atomic * n_parts
        if used < self.training.smallest:
            return None
        return step_s + (n_parts - 1) * (step_s - sync_s), used

    def reach_s(self, n_devices: int) -> float | None:
        """From start to end with at most so many devices: those that would slow it down stay idle."""
        times = [time_s for n in self.sizes(n_devices) if (time_s := self.best_s(n)) is not None]
        return min(times, default=None)

    def elastic(self, preferred: int, most: int, least_efficiency: float = 0.0) -> Elastic:
        """Rate of progress at each number of devices, relative to that on the preferred number.

        A number that is no faster than a smaller one has the smaller one's rate. The table ends at the fastest, or
        before it at the last at which a device brings the job forward at least `least_efficiency` times as fast as a
        single one does; never below the preferred number.
        """
        base_s, single_s = self.reach_s(preferred), self.reach_s(1)
        if base_s is None or single_s is None:
            raise BadTrace(f"{self.training.name}: has no profile on {preferred} devices, or on one")
        times = {
            n: time_s for n in self.sizes(max(most, preferred)) if (time_s := self.reach_s(n)) is not None
        }
        times.setdefault(preferred, base_s)
        fastest = min(n for n, time_s in times.items() if time_s == min(times.values()))
        worthwhile = max(n for n, time_s in times.items() if single_s / time_s / n >= least_efficiency)
        top = max(preferred, min(fastest, worthwhile))
        points = tuple((n, round(base_s / times[n], 6)) for n in sorted(times) if n <= top)
        return Elastic(points[0][0], top, points)
