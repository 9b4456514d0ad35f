"""The demo facility: made once, whole, and fed with work that is submitted once."""

import json
import stat
from pathlib import Path

import pytest
from django.core.management import call_command
from pytest_django import Settings

from apps.core import clock
from apps.inventory.models import Cluster, Domain, Node
from apps.jobs.models import Job
from apps.scheduling.demo import work
from apps.teams.services import authenticate_token

pytestmark = pytest.mark.django_db


@pytest.fixture
def accounts(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.VAR_DIR = tmp_path
    monkeypatch.setattr(work, "_FIRST_DEVICES", 60)
    call_command("demo", verbosity=0)
    return tmp_path / "demo-accounts.json"


def test_the_hall_is_as_large_as_it_is_said_to_be(accounts: Path) -> None:
    assert Cluster.objects.get(name="local").nodes.count() == 1
    assert Node.objects.filter(cluster__name="demo-hall").count() == 384
    counts = {kind: Domain.objects.filter(kind=kind).count() for kind in ("hall", "spine", "leaf")}
    assert counts == {"hall": 2, "spine": 3, "leaf": 24}


def test_accounts_are_for_their_owner_alone_and_their_tokens_work(accounts: Path) -> None:
    assert stat.S_IMODE(accounts.stat().st_mode) == 0o600
    entries = json.loads(accounts.read_text())
    assert {"admin", "operator", "power_admin", "auditor", "lead", "member", "viewer"} == {
        e["role"] for e in entries
    }
    for entry in entries:
        assert set(entry) == {"username", "password", "role", "team", "token"}
        found = authenticate_token(entry["token"], clock.now())
        assert found is not None
        assert found[0].username == entry["username"]


def test_a_second_time_changes_nothing(accounts: Path) -> None:
    before = accounts.read_text(), Job.objects.count()
    call_command("demo", verbosity=0)
    assert (accounts.read_text(), Job.objects.count()) == before


def test_feeding_stops_when_enough_waits_and_numbers_go_on(
    accounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_jobs = Job.objects.count()
    monkeypatch.setattr(work, "WAITING_AIM", n_jobs + 3)

    assert [work.feed(clock.now()) for _ in range(2)] == [3, 0]
    assert Job.objects.count() == n_jobs + 3


def test_a_number_is_always_the_same_job() -> None:
    assert work.request_of(17) == work.request_of(17)
    assert work.request_of(17) != work.request_of(18)
