"""Probes of nodes: what this machine tells of itself, and what becomes of it in the facility."""

import os
from pathlib import Path

import pytest

from apps.core.errors import OutsideError
from apps.execution import probing
from apps.execution.backends import local_probe
from apps.execution.backends.base import Backend, NodeCheck, ProbedNode
from apps.execution.backends.fake import FakeBackend
from apps.execution.backends.local import LocalBackend
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster, HealthReport, Node
from apps.jobs.tests.builders import NOON, Fleet, fleet, later

REAL = ProbedNode(name="here", n_devices=2, has_accelerators=True)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A program named nvidia-smi that says what the test has it say."""

    def says(text: str, *, exit_code: int = 0) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {exit_code}\n")
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return says


def checks(backend: Backend, node: ProbedNode = REAL) -> dict[str, NodeCheck]:
    (report,) = backend.probe([node], at=NOON)
    return {check.name: check for check in report.checks}


def test_this_machine_tells_of_its_disk_memory_and_load(tmp_path, monkeypatch):
    monkeypatch.setattr(local_probe.shutil, "which", lambda name: None)
    found = checks(LocalBackend(tmp_path / "spool"))

    assert set(found) == {"disk_space", "memory", "load"}
    assert 0 < found["disk_space"].value <= 1
    assert 0 < found["memory"].value <= 1


def test_a_full_disk_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(local_probe.shutil, "disk_usage", lambda folder: (10**12, 10**12 - 10**8, 10**8))

    assert not checks(LocalBackend(tmp_path / "spool"))["disk_space"].ok


def test_devices_are_asked_of_the_driver(tmp_path, driver):
    driver("0, 41, 0\n1, 55, [N/A]")
    found = checks(LocalBackend(tmp_path / "spool"))

    assert all(check.ok for name, check in found.items() if name not in ("load", "memory", "disk_space"))
    assert found["temperature"].value == 55
    assert found["ecc_uncorrected"].value == 0


@pytest.mark.parametrize(
    ("said", "failing"),
    [
        ("0, 41, 0", "device_missing"),
        ("0, 41, 0\n1, 95, 0", "temperature"),
        ("0, 41, 0\n1, 50, 3", "ecc_uncorrected"),
        ("", "device_missing"),
        ("garbage, more\nNo devices were found", "device_missing"),
    ],
)
def test_trouble_of_devices_is_found(tmp_path, driver, said, failing):
    driver(said)
    found = checks(LocalBackend(tmp_path / "spool"))

    assert [name for name, check in found.items() if not check.ok] == [failing]


def test_a_driver_that_fails_is_trouble_and_says_why(tmp_path, driver):
    driver("NVIDIA-SMI has failed because it couldn't communicate with the driver.", exit_code=9)
    found = checks(LocalBackend(tmp_path / "spool"))["driver"]

    assert not found.ok
    assert "couldn't communicate" in found.message


def test_slots_are_no_devices(tmp_path, driver):
    driver("")
    slots = ProbedNode(name="here", n_devices=4, has_accelerators=False)

    assert "device_missing" not in checks(LocalBackend(tmp_path / "spool"), slots)


def test_a_spool_that_can_not_be_used_is_lost_contact(tmp_path):
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(OutsideError):
        LocalBackend(tmp_path / "spool").probe([REAL], at=NOON)


# In the facility


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> tuple[Fleet, FakeBackend]:
    backend = FakeBackend()
    monkeypatch.setattr(probing, "backend_of", lambda cluster: backend)
    return fleet(2, 4), backend


def health(of: Node) -> str:
    of.refresh_from_db()
    return of.health


@pytest.mark.django_db
def test_what_a_probe_finds_is_judged_like_any_report(scene):
    here, backend = scene
    bad = here.nodes[1]
    backend.faults[bad.name] = (NodeCheck("fabric", False, 2.0, "two links"),)
    assert probing.probe_cluster(cluster=here.cluster, at=NOON) == [bad.pk]

    assert [health(node) for node in here.nodes] == ["healthy", "suspect"]
    assert HealthReport.objects.get(node=bad).checks[1]["message"] == "two links"
    backend.faults.clear()
    for second in (60, 120, 180):
        probing.probe_all(at=later(second))
    bad.refresh_from_db()
    assert bad.cooldown_until_at is not None


@pytest.mark.django_db
def test_a_node_that_is_not_reached_is_no_finding(scene):
    here, backend = scene
    backend.unseen.add(here.nodes[0].name)
    probing.probe_all(at=NOON)
    backend.is_away = True
    probing.probe_all(at=later(60))

    assert HealthReport.objects.count() == 1
    assert {health(node) for node in here.nodes} == {"healthy"}


@pytest.mark.django_db
def test_trouble_with_one_cluster_does_not_keep_the_others_waiting(monkeypatch):
    first, second = fleet(1), fleet(1)
    backend = FakeBackend()

    def choose(cluster: Cluster) -> FakeBackend:
        if cluster == first.cluster:
            raise RuntimeError
        return backend

    monkeypatch.setattr(probing, "backend_of", choose)
    probing.probe_all(at=NOON)

    assert HealthReport.objects.get().node == second.nodes[0]


@pytest.mark.django_db
@pytest.mark.usefixtures("scene")
def test_a_cluster_that_is_switched_off_is_left_alone():
    Cluster.objects.update(is_enabled=False)
    probing.probe_all(at=NOON)

    assert not HealthReport.objects.exists()


@pytest.mark.django_db
def test_a_backend_that_can_not_tell_is_not_asked(monkeypatch):
    monkeypatch.setattr(probing, "backend_of", lambda cluster: object())

    assert probing.probe_cluster(cluster=fleet(1).cluster, at=NOON) == []


@pytest.mark.django_db
def test_a_simulated_hall_plays_the_faults_it_is_given():
    here = fleet(2, backend=Kind.SIMULATED)
    here.cluster.config = {"faults": {here.nodes[0].name: {"xid_79": "off the bus"}}}
    here.cluster.save()
    probing.probe_all(at=NOON)

    assert [health(node) for node in here.nodes] == ["failed", "healthy"]


@pytest.mark.django_db
def test_probing_again_adds_no_rows(scene, django_assert_max_num_queries):
    here, _ = scene
    for second in range(5):
        with django_assert_max_num_queries(14):
            probing.probe_cluster(cluster=here.cluster, at=later(60 * second))

    assert sorted(HealthReport.objects.values_list("n_reports", flat=True)) == [5, 5]
