"""Where a job's data lies, and from when on it could be there."""

import numpy as np

from apps.scheduling.engine.facts import NONE, Facility, FloatArray, Gang, Snapshot


class Data:
    """Instants from which each node could read a job's data sets, if what is missing were sent now."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[tuple[int, ...], FloatArray] = {}

    def ready_s(self, gang: Gang) -> FloatArray | None:
        """(n,) instants; None where the job needs no data. A node without storage reads every copy at no cost."""
        if not gang.datasets:
            return None
        if gang.datasets not in self._known:
            facility: Facility = self._snapshot.facility
            ready = np.full(facility.n_nodes, self._snapshot.now_s)
            for position in gang.datasets:
                by_domain = np.full(len(facility.domains) + 1, self.sent_now_s(position))
                dataset = self._snapshot.datasets[position]
                for domain, arrives_s in dataset.arrives_s.items():
                    by_domain[domain] = arrives_s
                for domain in dataset.at:
                    by_domain[domain] = self._snapshot.now_s
                by_domain[NONE] = self._snapshot.now_s
                ready = np.maximum(ready, by_domain[facility.storage])
            self._known[gang.datasets] = ready
        return self._known[gang.datasets]

    def sent_now_s(self, dataset: int) -> float:
        """When a copy that is sent now arrives."""
        return (
            self._snapshot.now_s
            + self._snapshot.datasets[dataset].size_gib / self._snapshot.staging_gib_per_s
        )

    def missing(self, gang: Gang, nodes: set[int]) -> list[tuple[int, int]]:
        """(data set, storage domain) of what must be sent before the job can work on these nodes."""
        facility = self._snapshot.facility
        domains = sorted({int(facility.storage[node]) for node in nodes} - {NONE})
        return [
            (position, domain)
            for position in gang.datasets
            for domain in domains
            if domain not in self._snapshot.datasets[position].at
            and domain not in self._snapshot.datasets[position].arrives_s
        ]
