"""The power tree from rows: bounds when meters are silent, limits in force, what comes, and few queries at any size."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.inventory.models import Domain, Node
from apps.inventory.tests.builders import domain
from apps.jobs.models import Allocation, Job, PowerCap
from apps.jobs.tests.builders import NOON, fleet, grant, job, later, person, start, team
from apps.power.models import (
    JobPowerModel,
    MeterSource,
    PowerLimit,
    PowerReading,
)
from apps.power.telemetry.facts import How, Quality
from apps.scheduling import power_board
from apps.scheduling.models import Reason
from apps.scheduling.power_board import Branch, PowerTree, power_tree
from apps.teams.tests.builders import client
from apps.teams.tests.builders import person as somebody

pytestmark = pytest.mark.django_db

FACILITY_W = 10_000 + 1.25 * 12_000


class Hall:
    """A facility with a hall of two racks: on each a node of four devices of 700 W, on the first a job of four."""

    def __init__(self) -> None:
        self.facility = domain("site", "facility")
        self.hall = domain("hall", "hall", self.facility)
        self.racks = [domain(f"rack-{n}", "rack", self.hall) for n in (1, 2)]
        PowerLimit.objects.create(
            domain=self.facility, limit_w=40_000, overhead_fixed_w=10_000, overhead_k=1.25
        )
        PowerLimit.objects.create(domain=self.hall, limit_w=13_000, hard_limit_w=14_000)
        self.fleet = fleet(2, 4, idle_w=1_000.0)
        for node, rack in zip(self.fleet.nodes, self.racks, strict=True):
            Node.objects.filter(pk=node.pk).update(power=rack)
        self.team = team()
        self.me = person(self.team)
        self.job = job(self.team, self.me, devices=4, time_limit=7200.0)
        # 630 W above idle for each device, of which 400 W were reserved.
        self.allocation = start(
            self.job, self.fleet, grant(self.fleet.nodes[0], (0, 1, 2, 3), peak_w=4 * 400.0)
        )

    def say(self, of: Domain, draw_w: float, *, age_s: float = 10.0, **more) -> None:
        PowerReading.objects.create(
            domain=of, at=later(600 - age_s), draw_w=draw_w, **{"source": "metered", **more}
        )

    def tree(self, **event_limits_w: float) -> PowerTree:
        by_name = {one.name: one.pk for one in Domain.objects.all()}
        limits = {by_name[name]: limit_w for name, limit_w in event_limits_w.items()}
        return power_tree(later(600), event_limits_w=limits)

    def branch(self, of: Domain, **event_limits_w: float) -> Branch:
        return self.tree(**event_limits_w).by_id[of.pk]


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_without_meters_what_was_admitted_counts_and_nothing_is_held(hall: Hall):
    tree = hall.tree()
    rack = tree.by_id[hall.racks[0].pk]

    # The host, four devices at 70 W, and 400 W more for each.
    assert rack.load_w == pytest.approx(1_000 + 4 * 70 + 1_600)
    assert [one.bound.how for one in tree.branches] == [How.RESERVED] * 4
    assert not any(one.is_held for one in tree.branches)
    assert [(one.row.name, one.depth, one.n_below) for one in tree.branches] == [
        ("site", 0, 3),
        ("hall", 1, 2),
        ("rack-1", 2, 0),
        ("rack-2", 2, 0),
    ]


def test_what_was_reserved_counts_under_the_cap_that_keeps_it_from_being_drawn(hall: Hall):
    cap = _cap(hall.job, 370.0, at=later(590))
    Allocation.objects.filter(pk=cap.pk).update(desired_power_cap_share=370 / 700)
    assert hall.branch(hall.racks[0]).load_w == pytest.approx(1_280 + 4 * 300)
    PowerCap.objects.filter(pk=cap.pk).update(is_recorded=True)
    assert hall.branch(hall.racks[0]).load_w == pytest.approx(1_280 + 1_600)


def test_where_no_meter_is_read_the_model_says_what_is_drawn(hall: Hall):
    hall.say(hall.racks[0], 2_000, source="modelled", age_s=60)

    assert hall.branch(hall.racks[0]).shown_w == 2_000.0
    assert hall.branch(hall.racks[0]).measured_w is None


def test_a_facility_is_read_at_its_meter_and_bounds_as_it_load(hall: Hall):
    hall.say(hall.facility, FACILITY_W)
    site = hall.branch(hall.facility)

    assert (site.load_w, site.bound.how) == (pytest.approx(12_000), How.METER)
    assert site.limit_w == pytest.approx(24_000)  # (40 kW - 10 kW) / 1.25
    assert site.meter_w == pytest.approx(FACILITY_W)


def test_a_silent_rack_is_what_the_hall_and_the_other_leave(hall: Hall):
    hall.say(hall.hall, 6_000)
    hall.say(hall.racks[0], 9_999, age_s=400)
    hall.say(hall.racks[1], 1_500)
    rack = hall.branch(hall.racks[0])

    # At the most 1,280 W at rest and 630 W for each device: the hall leaves more than it can draw.
    assert (rack.load_w, rack.bound.how) == (pytest.approx(1_280 + 4 * 630), How.UNCAPPED)
    hall.say(hall.hall, 4_000, age_s=1)
    rack = hall.branch(hall.racks[0])
    assert (rack.load_w, rack.bound.how, rack.is_held) == (pytest.approx(2_500), How.SIBLINGS, True)
    assert not hall.branch(hall.racks[1]).bound.is_held


def test_with_nothing_heard_a_job_is_taken_for_uncapped_until_its_cap_is_acknowledged(hall: Hall):
    hall.say(hall.racks[0], 3_000, age_s=400)
    rack = hall.branch(hall.racks[0])
    assert (rack.load_w, rack.bound.quality) == (pytest.approx(1_280 + 4 * 630), Quality.MISSING)
    assert hall.tree().picture.unseen_jobs == {hall.job.pk}

    cap = _cap(hall.job, 370.0, at=later(590))
    rack = hall.branch(hall.racks[0])
    assert (rack.load_w, rack.bound.how) == (pytest.approx(1_280 + 4 * 300), How.CAPS)

    # What an agent has said grows old; a cap that is only written down, or not answered for, is none.
    for changes in ({"observed_at": later(100)}, {"is_recorded": True}, {"observed_share": None}):
        told = {"observed_at": later(590), "is_recorded": False, "observed_share": 370.0 / 700, **changes}
        PowerCap.objects.filter(pk=cap.pk).update(**told)
        assert hall.branch(hall.racks[0]).bound.how is How.UNCAPPED


def _cap(of: Job, cap_w: float, *, at) -> PowerCap:
    return PowerCap.objects.create(
        allocation=Allocation.objects.get(job=of, ended_at=None),
        desired_share=cap_w / 700,
        desired_at=NOON,
        fence=1,
        observed_share=cap_w / 700,
        observed_fence=1,
        observed_at=at,
    )


def test_how_old_a_reading_may_be_is_said_by_its_source_else_by_its_domain(hall: Hall):
    hall.say(hall.hall, 6_000, age_s=200)
    assert hall.branch(hall.hall).bound.how is How.METER
    PowerLimit.objects.filter(domain=hall.hall).update(max_age_s=100)
    assert hall.branch(hall.hall).bound.how is not How.METER

    MeterSource.objects.create(name="pdu", url="http://p", query="x", domain_label="d", max_age_s=600)
    hall.say(hall.hall, 6_100, age_s=199, source="pdu")
    assert hall.branch(hall.hall).load_w == 6_100.0


def test_a_meter_that_was_silent_for_a_week_is_expected_no_more(hall: Hall):
    hall.say(hall.racks[0], 3_000, age_s=8 * 86_400)

    assert hall.branch(hall.racks[0]).bound.how is How.RESERVED


def test_the_tightest_limit_is_in_force_and_what_is_over_it_is_told(hall: Hall):
    hall.say(hall.hall, 6_000)
    assert hall.branch(hall.hall).limit_w == 13_000.0
    tight = hall.branch(hall.hall, hall=5_000.0)

    assert (tight.limit_w, tight.event_limit_w) == (5_000.0, 5_000.0)
    assert (tight.bound.over_w, tight.is_held) == (pytest.approx(1_000), True)


def test_what_comes_ends_by_limits_and_starts_when_it_is_expected(hall: Hall):
    hall.say(hall.facility, FACILITY_W)
    waiting = job(
        hall.team, hall.me, devices=2, accelerators=[hall.fleet.kind.name], time_limit=1800.0, power_w=400.0
    )
    Reason.objects.create(
        job=waiting, pass_id=1, at=NOON, code="resources", sentence="x", expected_start_at=later(3600)
    )
    tree = hall.tree()
    coming = power_board.coming(tree, until=later(4 * 3600))
    load_w = dict(coming.points)

    assert (coming.n_starts, coming.n_ends) == (1, 1)
    # Two devices start after an hour, each with the declared 330 W above idle.
    assert load_w[later(3600)] == pytest.approx(12_000 + 2 * 330)
    # They end after half an hour, and the running job after two hours with what was reserved for it.
    assert load_w[later(5400)] == pytest.approx(12_000)
    assert load_w[later(7200)] == pytest.approx(12_000 - 1_600)
    assert coming.highest == (later(3600), pytest.approx(12_660))


def test_estimated_against_measured_is_told_over_the_highest_domains_that_have_both(hall: Hall):
    for of, measured_w, estimated_w in ((hall.hall, 10_000, 11_000), (hall.racks[0], 5_000, 1.0)):
        hall.say(of, measured_w)
        hall.say(of, estimated_w, source="modelled")

    assert hall.tree().off_by == pytest.approx(0.1)


def test_running_jobs_that_are_measured_are_listed_where_it_differs_most(hall: Hall):
    second = job(hall.team, hall.me, devices=1, peak_w=500.0, name="second")
    start(second, hall.fleet, grant(hall.fleet.nodes[1]))
    for of, peak_w in ((hall.job, 400.0), (second, 510.0)):
        JobPowerModel.objects.create(
            job_id=of.pk,
            user=hall.me,
            name=of.name,
            accelerator_type=hall.fleet.kind,
            mean_w=300,
            peak_w=peak_w,
            n_looks=90,
            updated_at=later(500),
        )
    first, other = power_board.measured_jobs(later(600))

    assert (first.job_id, first.else_w, first.else_source, first.differs_w) == (
        hall.job.pk,
        700.0,
        "by its type",
        1_200.0,
    )
    assert (other.job_id, other.else_w, other.else_source, other.differs_w) == (
        second.pk,
        500.0,
        "declared",
        -10.0,
    )


def test_a_larger_tree_takes_as_few_queries(hall: Hall):
    hall.say(hall.hall, 6_000, age_s=400)
    with CaptureQueriesContext(connection) as few:
        hall.tree()
    Domain.objects.bulk_create(
        [Domain(name=f"more-{n}", kind="rack", parent=hall.hall) for n in range(1_250)]
    )
    racks = list(Domain.objects.filter(name__startswith="more-"))
    PowerReading.objects.bulk_create(
        [
            PowerReading(domain=rack, at=later(590 - 500 * (n % 2)), draw_w=5, source="metered")
            for n, rack in enumerate(racks)
        ]
    )
    Node.objects.bulk_create(
        [
            Node(
                cluster=hall.fleet.cluster,
                name=f"more-{n}",
                accelerator_type=hall.fleet.kind,
                n_devices=8,
                power=racks[n % len(racks)],
            )
            for n in range(10_000)
        ]
    )
    with CaptureQueriesContext(connection) as many:
        tree = hall.tree()

    assert len(tree.branches) == 1_254
    assert len(many) == len(few) == 6  # one of them is the test's own


# REST ---------------------------------------------------------------------------------------------------------------


def test_loads_are_read_page_by_page_by_everybody(hall: Hall, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clock, "now", lambda: later(600))
    hall.say(hall.hall, 6_000)
    hall.say(hall.racks[0], 3_000, age_s=400)
    asker = client(somebody("max"))
    first = asker.get("/api/v1/power/loads", {"limit": 2}).json()
    rest = asker.get("/api/v1/power/loads", {"limit": 2, "cursor": first["next"]}).json()
    found = {one["name"]: one for one in first["items"] + rest["items"]}

    assert list(found) == ["hall", "rack-1", "rack-2", "site"]
    assert (found["hall"]["load_w"], found["hall"]["known_by"], found["hall"]["quality"]) == (
        6_000,
        "meter",
        "ok",
    )
    assert (found["rack-1"]["known_by"], found["rack-1"]["hold_starts"]) == ("uncapped", True)
    assert found["rack-1"]["age_s"] == 400.0
    assert [one["name"] for one in asker.get("/api/v1/power/loads?kind=hall").json()["items"]] == ["hall"]
    assert asker.get("/api/v1/power/loads?kind=leaf").status_code == 400
    assert client().get("/api/v1/power/loads").status_code == 401


def test_a_job_says_what_is_counted_with_and_by_whose_word(hall: Hall):
    asker = client(somebody("max"))

    def told(of: Job) -> list[tuple[float, float, str]]:
        answer = asker.get(f"/api/v1/jobs/{of.pk}/power").json()
        return [(one["mean_w"], one["peak_w"], one["source"]) for one in answer["types"]]

    assert told(hall.job) == [(700.0, 700.0, "tdp_derived")]
    declared = job(hall.team, hall.me, power_w=300.0, peak_w=400.0, name="other")
    assert told(declared) == [(300.0, 400.0, "declared")]
    JobPowerModel.objects.create(
        user=hall.me,
        name="train",
        accelerator_type=hall.fleet.kind,
        mean_w=320,
        peak_w=410,
        n_looks=90,
        updated_at=NOON,
    )
    assert told(hall.job) == [(320.0, 410.0, "measured")]
    assert asker.get("/api/v1/jobs/999999/power").status_code == 404


def test_an_attempt_that_ended_adds_nothing(hall: Hall):
    Allocation.objects.filter(pk=hall.allocation.pk).update(ended_at=later(100))

    assert hall.branch(hall.racks[0]).load_w == pytest.approx(1_280)
    assert power_board.coming(hall.tree(), until=NOON + timedelta(hours=5)).n_ends == 0
