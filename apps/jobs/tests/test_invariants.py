"""Whatever is asked in whatever order: the ledger adds up at every step, and in the end nothing is held."""

from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.errors import DomainError
from apps.inventory.models import Device
from apps.jobs import services
from apps.jobs.lifecycle import ENDED, State, WrongState
from apps.jobs.models import Allocation, Job
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import Fleet, fleet, grant, job, later, person, team
from apps.teams.models import Team, User

pytestmark = pytest.mark.django_db

OUTCOMES = ["succeeded", "failed", "cancelled", "timed_out", "vacated", "start_failed", "node_lost"]
Step = tuple[str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "follow", "allocate", "start", "end", "end again", "stop", "hold", "release"]
        ),
        st.integers(0, 7),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=40,
)


@dataclass
class World:
    here: Fleet
    ours: Team
    me: User
    jobs: list[int] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    now: int = 0

    def do(self, step: Step) -> None:
        verb, a, b, c = step
        self.now += 7
        # What is refused may have changed nothing, which the check after it sees.
        with suppress(DomainError, WrongState):
            getattr(self, verb.replace(" ", "_"))(a, b, c)

    def submit(self, a: int, *_: int) -> None:
        limit = {"time_limit": 20.0} if a % 2 else {}
        self.jobs.append(job(self.ours, self.me, at=later(self.now), **limit).pk)

    def follow(self, a: int, *_: int) -> None:
        if self.jobs:
            after = [self.jobs[a % len(self.jobs)]]
            self.jobs.append(job(self.ours, self.me, at=later(self.now), after=after).pk)

    def allocate(self, a: int, b: int, c: int) -> None:
        if not self.jobs:
            return
        shares = {0: "0.25", 1: "0.5"}.get(c % 4, "1")
        devices = (b % 4,) if c % 4 < 3 else (b % 4, (b + 1) % 4)
        with transaction.atomic():
            allocation = services.allocate(
                job_id=self.jobs[a % len(self.jobs)],
                cluster_id=self.here.cluster.pk,
                placements=[grant(self.here.nodes[b % 2], devices, share=shares)],
                pass_id=None,
                at=later(self.now),
            )
        self.allocations.append(allocation)

    def start(self, a: int, *_: int) -> None:
        if self.allocations:
            one = self.allocations[a % len(self.allocations)]
            services.allocation_started(allocation_id=one.pk, fence=one.fence, at=later(self.now))

    def end(self, a: int, b: int, *_: int) -> None:
        if self.allocations:
            one = self.allocations[a % len(self.allocations)]
            self._end(one, OUTCOMES[b % len(OUTCOMES)])

    def end_again(self, a: int, b: int, *_: int) -> None:
        self.end(a, b)
        self.end(a, b + 1)

    def _end(self, one: Allocation, outcome: Any) -> None:
        services.allocation_ended(allocation_id=one.pk, fence=one.fence, at=later(self.now), outcome=outcome)

    def stop(self, a: int, *_: int) -> None:
        if self.jobs:
            services.stop_job(job_id=self.jobs[a % len(self.jobs)], actor=self.me, at=later(self.now))

    def hold(self, a: int, *_: int) -> None:
        if self.jobs:
            services.hold_job(job_id=self.jobs[a % len(self.jobs)], actor=self.me, at=later(self.now))

    def release(self, a: int, *_: int) -> None:
        if self.jobs:
            services.release_job(job_id=self.jobs[a % len(self.jobs)], actor=self.me, at=later(self.now))

    def finish(self) -> None:
        for one in self.allocations:
            self._end(one, "succeeded")
        for job_id in self.jobs:
            services.stop_job(job_id=job_id, actor=self.me, at=later(self.now))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_the_ledger_adds_up_at_every_step_and_in_the_end_nothing_is_held(db, steps):
    with transaction.atomic():
        ours = team()
        world = World(fleet(2, 4), ours, person(ours))
        for step in steps:
            world.do(step)
            assert ledger_faults() == []
            assert not Device.objects.filter(claimed_share__gt=1).exists()
        world.finish()

        assert world.here.claimed() == Decimal(0)
        assert ledger_faults() == []
        assert {State(state) for state in Job.objects.values_list("state", flat=True)} <= ENDED
        transaction.set_rollback(True)
