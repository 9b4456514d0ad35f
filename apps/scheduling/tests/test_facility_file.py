"""Facility files: what they mean, what is wrong with them, and what becomes of the facility."""

from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import Forbidden, InvalidInput
from apps.events.models import Event
from apps.inventory.models import AcceleratorType, Cluster, Device, Domain, Health, Node
from apps.inventory.tests.builders import domain, node
from apps.jobs.imports.facts import Unreadable
from apps.jobs.models import Job
from apps.jobs.tests import builders as jobs
from apps.power.models import PowerLimit
from apps.scheduling.facility import changing
from apps.scheduling.facility.changing import Checked, FacilityChanged
from apps.scheduling.facility.reading import read
from apps.teams.models import FacilityRole, User
from apps.teams.tests.builders import NOON, client, person

WHOLE = """\
accelerator_types:
  - {name: H100, tdp_w: 700, memory_gib: 80}
clusters:
  - {name: hall, backend: simulated}
domains:
  - {name: Site, kind: facility, limit_w: 100000}
  - {name: R1, kind: rack, parent: Site}
  - {name: l01, kind: leaf}
nodes:
  - {name: "n[01-04]", cluster: hall, accelerator_type: H100, n_devices: 8, leaf: l01, power: R1}
"""
TABLE = """\
name,cluster,backend,accelerator_type,tdp_w,n_devices,facility,rack,spine,leaf
n01,hall,simulated,H100,700,8,Site,R1,s1,l01
n02,hall,simulated,H100,700,8,Site,R2,s1,l01
"""


@pytest.fixture
def admin(db: None) -> User:
    return person("ada", FacilityRole.ADMIN)


def checked(text: str, admin: User, *, is_whole: bool = False) -> Checked:
    return changing.check(text=text, is_whole=is_whole, actor=admin, at=NOON)


def applied(text: str, admin: User, *, is_whole: bool = False, at: datetime = NOON) -> Checked:
    found = checked(text, admin, is_whole=is_whole)
    assert found.faults == []
    return changing.apply(
        text=text, is_whole=is_whole, digest=found.digest, actor=admin, at=at, reason="as built"
    )


def said(found: Checked) -> dict[str, str]:
    return {one.name: one.action for one in found.changes}


def faults(text: str) -> list[tuple[int | None, str]]:
    return [(one.line, one.path) for one in read(text).faults]


# What is read -------------------------------------------------------------------------------------------------------


def test_names_with_ranges_stand_for_many_nodes() -> None:
    text = WHOLE.replace("n[01-04]", "l[08-10,12]-x")

    assert [one.value.name for one in read(text).nodes] == ["l08-x", "l09-x", "l10-x", "l12-x"]
    assert {one.line for one in read(text).nodes} == {10}


@pytest.mark.parametrize(
    ("old", "new", "line", "path"),
    [
        ("tdp_w: 700", "tdp_w: -1", 2, "accelerator_types[0].tdp_w"),
        ("tdp_w: 700, ", "", 2, "accelerator_types[0].tdp_w"),
        ("backend: simulated", "backend: cloud", 4, "clusters[0].backend"),
        ("kind: rack", "kind: shelf", 7, "domains[1].kind"),
        ("kind: leaf", "kind: leaf, hight: 3", 8, "domains[2].hight"),
        ("n_devices: 8", "n_devices: 8.5", 10, "nodes[0].n_devices"),
        ("name: R1", "name: Site", 7, "name"),
        ("clusters:", "clutsers:", 3, "clutsers"),
    ],
)
def test_a_fault_of_yaml_is_told_with_line_and_field(old: str, new: str, line: int, path: str) -> None:
    assert (line, path) in faults(WHOLE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "line", "path"),
    [
        ("n02,hall,simulated,H100,700,8", "n02,hall,simulated,H100,700,many", 3, "n_devices"),
        ("n02,hall,simulated,H100,700,8", "n02,hall,simulated,H100,nan,8", 3, "tdp_w"),
        ("n02,hall,simulated", "n02,hall,local", 3, "backend"),
        ("n02", "n01", 3, "name"),
        ("8,Site,R2,s1", "8,Site,R2,s2", 3, "leaf"),
        ("leaf\n", "leef\n", 1, "leef"),
        ("n02,hall,simulated,", "n02,hall,", 3, ""),
        ("name,", "label,", 1, "name"),
    ],
)
def test_a_fault_of_csv_is_told_with_line_and_column(old: str, new: str, line: int, path: str) -> None:
    assert (line, path) in faults(TABLE.replace(old, new))


@pytest.mark.parametrize("text", ["", "# nothing\n", "[1, 2]", "a: [", "just words", "nodes: &a [*a]"])
def test_what_is_no_facility_file_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)


# What it means ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [WHOLE, TABLE])
def test_a_check_changes_nothing(admin: User, text: str) -> None:
    before = Event.objects.count()

    found = checked(text, admin)

    assert found.faults == []
    assert {one.action for one in found.changes} == {"add"}
    assert not Node.objects.exists()
    assert not Domain.objects.exists()
    assert Event.objects.count() == before


def test_an_empty_installation_gets_what_the_file_says(admin: User) -> None:
    applied(WHOLE, admin)

    built = Node.objects.get(name="n03")
    assert Node.objects.count() == 4
    assert (built.leaf and built.leaf.name, built.power and built.power.name) == ("l01", "R1")
    assert Device.objects.filter(node=built).count() == 8
    assert Domain.objects.get(name="R1").parent == Domain.objects.get(name="Site")
    assert PowerLimit.objects.get(domain__name="Site").limit_w == 100_000
    event = Event.objects.get(kind="facility.imported")
    assert (event.actor_name, event.reason, event.is_audit) == ("ada", "as built", True)


def test_a_table_makes_the_trees_that_its_rows_name(admin: User) -> None:
    applied(TABLE, admin)

    built = Node.objects.select_related("leaf__parent", "power__parent").get(name="n02")
    names = [one.name for tree in (built.leaf, built.power) if tree for one in (tree.parent, tree) if one]
    assert names == ["s1", "l01", "Site", "R2"]


@pytest.mark.parametrize("text", [WHOLE, TABLE])
def test_the_same_file_twice_changes_nothing_the_second_time(admin: User, text: str) -> None:
    applied(text, admin)
    n_events = Event.objects.count()

    again = checked(text, admin, is_whole=True)

    assert again.n_changes == 0
    assert not again.may_be_applied
    assert Event.objects.count() == n_events


def test_what_a_file_does_not_say_stays(admin: User) -> None:
    applied(WHOLE, admin)
    node("other", of="H100")

    text = "nodes: [{name: n01, cluster: hall, accelerator_type: H100, n_devices: 8, speed: 0.5}]"
    found = applied(text, admin)

    (change,) = found.changes
    assert (change.name, change.before, change.after) == ("n01", {"speed": 1.0}, {"speed": 0.5})
    assert Node.objects.get(name="n01").leaf is not None
    assert Node.objects.filter(name="other").exists()


def test_changes_are_carried_out_with_an_event_each(admin: User) -> None:
    applied(WHOLE, admin)
    text = WHOLE.replace("tdp_w: 700", "tdp_w: 650").replace("n_devices: 8", "n_devices: 4")
    rack = "{name: R1, kind: rack, parent: Site}"
    hall = "{name: Hall, kind: hall, parent: Site}"
    text = text.replace(rack, f"{hall}\n  - {rack.replace('Site', 'Hall')}")
    applied(text.replace("limit_w: 100000", "limit_w: 90000"), admin)

    assert AcceleratorType.objects.get(name="H100").tdp_w == 650
    assert Device.objects.count() == 16
    assert Domain.objects.get(name="R1").parent == Domain.objects.get(name="Hall")
    assert PowerLimit.objects.get(domain__name="Site").limit_w == 90_000
    changed = Event.objects.get(kind="node.changed", subject_name="n02")
    assert (changed.before, changed.after) == ({"n_devices": 8}, {"n_devices": 4})


@pytest.mark.parametrize(
    ("old", "new", "line", "path"),
    [
        ("parent: Site", "parent: Sight", 7, "parent"),
        ("parent: Site", "parent: l01", 7, "parent"),
        ("cluster: hall", "cluster: hull", 10, "cluster"),
        ("accelerator_type: H100", "accelerator_type: H1000", 10, "accelerator_type"),
        ("power: R1", "power: l01", 10, "power"),
        ("memory_gib: 80", "idle_w: 900", 2, "idle_w"),
        ("limit_w: 100000", "limit_w: 100000, hard_limit_w: 5000", 6, ""),
    ],
)
def test_what_cannot_be_is_told_by_the_check(admin: User, old: str, new: str, line: int, path: str) -> None:
    found = checked(WHOLE.replace(old, new), admin)

    assert not found.may_be_applied
    assert line in {one.line for one in found.faults}
    assert any(one.path == path for one in found.faults) or not path
    with pytest.raises(InvalidInput):
        changing.apply(
            text=WHOLE.replace(old, new), is_whole=False, digest=found.digest, actor=admin, at=NOON
        )
    assert not Node.objects.exists()


def test_a_clusters_configuration_is_stored_and_told_to_nobody(admin: User) -> None:
    text = WHOLE.replace("backend: simulated", "backend: simulated, config: {token: hunter2}")
    applied(WHOLE, admin)
    found = applied(text, admin)

    assert Cluster.objects.get().config == {"token": "hunter2"}
    assert "hunter2" not in str(found.changes)
    assert "hunter2" not in str(list(Event.objects.values()))


# What runs ----------------------------------------------------------------------------------------------------------


def _running(name: str) -> Job:
    """A job on the last device of a node of the hall."""
    of = jobs.team(f"team-of-{name}", quota={AcceleratorType.objects.get(name="H100"): 8})
    asked = jobs.job(of, jobs.person(of))
    where = Node.objects.get(name=name)
    fleet = jobs.Fleet(where.cluster, where.accelerator_type, (where,))
    jobs.start(asked, fleet, jobs.grant(where, (7,)))
    return asked


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("n_devices: 8", "n_devices: 4", "n_devices"),
        ("accelerator_type: H100,", "accelerator_type: A100,", "accelerator_type"),
        ("cluster: hall,", "cluster: other,", "cluster"),
    ],
)
def test_a_node_that_runs_work_stays_what_it_is(admin: User, old: str, new: str, path: str) -> None:
    more = WHOLE.replace("{name: H100", "{name: A100, tdp_w: 400}\n  - {name: H100")
    more = more.replace("{name: hall", "{name: other, backend: simulated}\n  - {name: hall")
    applied(more, admin)
    _running("n02")

    found = checked(more.replace(old, new), admin)

    assert [one.path for one in found.faults] == [path]
    assert "n02" in found.faults[0].message


def test_jobs_that_run_on_what_is_touched_are_named(admin: User) -> None:
    applied(WHOLE, admin)
    job = _running("n02")

    by_node = checked(WHOLE.replace("leaf: l01, ", "leaf: l01, speed: 0.9, "), admin)
    by_limit = checked(WHOLE.replace("100000", "90000"), admin)
    by_nothing = checked("accelerator_types: [{name: B200, tdp_w: 1000}]\n", admin)

    touched = {change.name: by_node.jobs_of(change) for change in by_node.changes}
    assert touched == {"n01": [], "n02": [job.pk], "n03": [], "n04": []}
    assert by_limit.jobs == [job]
    assert by_nothing.jobs == []


def test_what_has_run_work_is_drained_and_its_domains_stay(admin: User) -> None:
    applied(WHOLE, admin)
    _running("n02")
    text = "accelerator_types: [{name: H100, tdp_w: 700}]\n"

    found = applied(text, admin, is_whole=True)

    assert said(found) == {
        "n01": "remove",
        "n02": "drain",
        "n03": "remove",
        "n04": "remove",
        "R1": "keep",
        "l01": "keep",
        "Site": "keep",
    }
    assert Node.objects.get().health == Health.DRAINING
    assert Domain.objects.count() == 3


def test_the_whole_facility_removes_what_the_file_does_not_name(admin: User) -> None:
    applied(WHOLE, admin)
    domain("R9", "rack", Domain.objects.get(name="Site"))
    node("stray", of="H100")

    found = applied(WHOLE, admin, is_whole=True)

    assert said(found) == {"stray": "remove", "R9": "remove"}
    assert not Node.objects.filter(name="stray").exists()
    assert not Domain.objects.filter(name="R9").exists()
    assert Event.objects.filter(kind="node.removed", subject_name="stray").count() == 1


def test_what_was_checked_is_applied_or_nothing(admin: User) -> None:
    found = checked(WHOLE, admin)
    domain("Site", "facility")

    with pytest.raises(FacilityChanged):
        changing.apply(text=WHOLE, is_whole=False, digest=found.digest, actor=admin, at=NOON)
    assert not Node.objects.exists()


@pytest.mark.parametrize("role", [FacilityRole.NONE, FacilityRole.AUDITOR, FacilityRole.POWER_ADMIN])
def test_only_operators_check(db: None, role: str) -> None:
    with pytest.raises(Forbidden):
        checked(WHOLE, person("x", role))


def test_operators_check_and_administrators_apply(db: None) -> None:
    operator = person("olga", FacilityRole.OPERATOR)
    found = checked(WHOLE, operator)

    assert found.may_be_applied
    with pytest.raises(Forbidden):
        changing.apply(text=WHOLE, is_whole=False, digest=found.digest, actor=operator, at=NOON)


def test_more_nodes_do_not_cost_more_queries_to_compare(admin: User) -> None:
    def n_queries(text: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert checked(text, admin).faults == []
        return len(queries)

    # Beside the batches in which rows are written.
    assert n_queries(WHOLE.replace("01-04", "001-400")) <= n_queries(WHOLE) + 2


def test_the_facility_that_is_built_reads_back_as_it_is(admin: User) -> None:
    applied(WHOLE, admin)
    text = changing.written()

    found: Any = checked(text, admin, is_whole=True)
    assert (found.faults, found.changes) == ([], [])
    assert Health.HEALTHY not in text


# By REST ------------------------------------------------------------------------------------------------------------


def test_by_rest_a_file_is_checked_and_then_applied_once(admin: User) -> None:
    door = client(admin)
    checked_ = door.post("/api/v1/facility/check", {"text": WHOLE}, format="json")
    body = {"text": WHOLE, "digest": checked_.data["digest"], "reason": "as built"}

    first, again = (door.post("/api/v1/facility/apply", body, format="json") for _ in range(2))

    assert (checked_.status_code, checked_.data["may_be_applied"]) == (200, True)
    assert checked_.data["counts"]["node"] == {"add": 4}
    assert (first.status_code, again.status_code, again.data["code"]) == (200, 409, "outdated")
    assert Event.objects.filter(kind="facility.imported").count() == 1
    text = door.get("/api/v1/facility").data["text"]
    same = door.post("/api/v1/facility/check", {"text": text, "is_whole": True}, format="json").data
    assert (same["changes"], same["faults"]) == ([], [])


@pytest.mark.parametrize(
    ("role", "checks", "applies"),
    [(FacilityRole.OPERATOR, 200, 403), (FacilityRole.AUDITOR, 403, 403), (FacilityRole.NONE, 403, 403)],
)
def test_by_rest_operators_check_and_administrators_apply(
    db: None, role: str, checks: int, applies: int
) -> None:
    door = client(person("x", role))
    body = {"text": WHOLE}

    assert door.post("/api/v1/facility/check", body, format="json").status_code == checks
    assert door.get("/api/v1/facility").status_code == checks
    assert door.post("/api/v1/facility/apply", {**body, "digest": "d"}, format="json").status_code == applies


def test_by_rest_a_fault_has_its_line_and_field(admin: User) -> None:
    answer = client(admin).post(
        "/api/v1/facility/check", {"text": WHOLE.replace("tdp_w: 700", "tdp_w: -1")}, format="json"
    )

    assert answer.data["faults"][0] | {"message": ""} == {
        "line": 2,
        "path": "accelerator_types[0].tdp_w",
        "message": "",
    }
    assert not answer.data["may_be_applied"]
