"""What is noted as on its way is brought there, whatever is killed, and told how it fares."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from apps.core import clock
from apps.inventory.tests.builders import domain, node
from apps.staging import loop, services
from apps.staging.models import Copy, Store, Transfer
from apps.staging.movers import choice
from apps.staging.movers.base import GIB, MoveState
from apps.staging.tests import builders
from apps.staging.tests.builders import MIB, content, kill, lay, read, wait_until
from apps.staging.tests.scenes import Scene, later, scene, store
from apps.teams.tests.builders import person

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def roots(settings: Any, tmp_path: Path) -> None:
    settings.SWITCHYARD_STORE_ROOTS = [str(tmp_path), "s3://sets", "node7:/data"]
    settings.VAR_DIR = tmp_path / "var"


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene whose mover is the fake one."""
    made = scene(tmp_path)
    monkeypatch.setattr(choice, "mover_named", lambda name: made.mover)
    return made


# From the note to the copy ----------------------------------------------------------------------------------


def test_what_is_asked_for_is_begun_once(played: Scene) -> None:
    first = played.ask()
    played.move()
    again = played.ask(at_s=1)
    played.move(at_s=1)

    assert again == first
    assert [order.key for order in played.mover.started] == [first.key]
    found = played.transfer()
    assert (found.mover, found.attempts, found.from_domain, found.for_job_id) == ("rsync", 1, played.far, 7)
    assert found.target_uri == f"{played.root}/near/imagenet"


def test_what_arrives_is_a_copy_with_its_address(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.say(MoveState.DONE, bytes_done=100 * GIB, bytes_total=100 * GIB)
    played.move(at_s=50)
    played.move(at_s=51)

    assert Copy.objects.get(domain=played.near).uri == f"{played.root}/near/imagenet"
    assert played.transfer().ended_at == later(50)
    assert len(played.events("transfer_ended")) == 1
    assert played.ask(at_s=60) is None


def test_the_expected_end_follows_from_the_slower_store(tmp_path: Path) -> None:
    made = scene(tmp_path)
    Store.objects.filter(domain=made.far).update(rate_gib_per_s=0.5)

    assert made.ask().expected_end_at == later(200)


def test_the_expected_end_is_corrected_by_the_rate_that_is_seen(played: Scene) -> None:
    played.ask()
    played.move()
    said = {"bytes_total": 100 * GIB, "bytes_per_s": GIB / 10}
    played.mover.say(MoveState.RUNNING, bytes_done=10 * GIB, **said)
    played.move(at_s=100)

    found = played.transfer()
    assert found.expected_end_at == later(100 + 900)
    assert (found.bytes_done, found.bytes_total) == (10 * GIB, 100 * GIB)
    # What changes by a hair is told to nobody.
    played.mover.say(MoveState.RUNNING, bytes_done=10 * GIB + GIB // 10, **said)
    played.move(at_s=101)
    assert len(played.events("transfer_rescheduled")) == 1


def test_a_wrong_size_is_corrected_when_the_truth_is_known(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.say(MoveState.RUNNING, bytes_done=0, bytes_total=3 * GIB)
    played.move(at_s=1)

    played.dataset.refresh_from_db()
    assert played.dataset.size_gib == 3.0
    assert [event.before for event in played.events("size_corrected")] == [{"size_gib": 100.0}]


def test_a_copy_that_somebody_else_brought_ends_it(played: Scene) -> None:
    played.ask()
    services.set_copies(dataset_id=played.dataset.pk, at_domains=["far", "near"], actor=None, at=later(1))
    played.move(at_s=2)

    assert played.mover.started == []
    assert (played.transfer().ended_at, played.transfer().error) == (later(2), "")


def test_only_so_many_are_carried_at_once(played: Scene, settings: Any) -> None:
    settings.SWITCHYARD_TRANSFERS_AT_ONCE = 1
    other = services.create_dataset(name="b", size_gib=1, at_domains=["far"], actor=None, at=later(0))
    played.ask()
    waiting = played.ask(dataset_id=other.pk)
    played.move()
    played.move(at_s=500)
    assert len(played.mover.started) == 1
    # It cannot come at a time that has passed.
    waiting.refresh_from_db()
    assert waiting.expected_end_at > later(500)

    played.mover.say(MoveState.DONE, bytes_total=GIB)
    played.move(at_s=501)
    played.move(at_s=502)
    assert len(played.mover.started) == 2


# Trouble ----------------------------------------------------------------------------------------------------


def test_what_fails_is_tried_again_later_and_later(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.say(MoveState.FAILED, error="disk full")
    played.move(at_s=1)
    assert (played.transfer().next_attempt_at, played.transfer().last_error) == (later(16), "disk full")

    played.move(at_s=15)
    assert len(played.mover.started) == 1
    played.move(at_s=16)
    assert len(played.mover.started) == 2
    played.mover.say(MoveState.FAILED, error="disk full")
    played.move(at_s=17)

    assert played.transfer().next_attempt_at == later(17 + 30)
    assert played.transfer().ended_at is None


def test_after_some_attempts_it_is_given_up_with_an_error_and_an_event(played: Scene) -> None:
    _fail_for_good(played)

    found = played.transfer()
    assert (found.attempts, found.error) == (loop.MOST_ATTEMPTS, "disk full")
    assert not played.is_there()
    assert played.mover.cancelled == [found.key]  # what lies half-done is taken away
    assert [event.data["error"] for event in played.events("transfer_ended")] == ["disk full"]
    assert len(played.events("transfer_delayed")) == loop.MOST_ATTEMPTS - 1


def test_what_was_given_up_rests_before_it_is_begun_again(played: Scene) -> None:
    end_s = _fail_for_good(played)

    assert played.ask(at_s=end_s + 3599) is None
    assert played.ask(at_s=end_s + 3601) is not None


def test_a_person_may_begin_it_again_at_once(played: Scene) -> None:
    end_s = _fail_for_good(played)
    made = services.stage_by_hand(dataset_id=played.dataset.pk, to_domain="near", actor=None, at=later(end_s))

    assert made.ended_at is None


def _fail_for_good(played: Scene) -> float:
    played.ask()
    at_s = 0.0
    while played.transfer().ended_at is None:
        at_s += 3600
        played.move(at_s=at_s)
        played.mover.say(MoveState.FAILED, error="disk full")
        played.move(at_s=at_s + 1)
    return at_s + 1


def test_what_has_no_hope_is_not_tried_again(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.say(MoveState.FAILED, error="nothing there", is_permanent=True)
    played.move(at_s=1)

    assert (played.transfer().ended_at, played.transfer().attempts) == (later(1), 1)


def test_what_was_lost_goes_on_from_where_it_was(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.say(MoveState.LOST, bytes_done=5 * GIB, bytes_total=100 * GIB)
    played.move(at_s=1)
    played.move(at_s=16)

    first, second = played.mover.started
    assert first.key == second.key
    assert played.transfer().bytes_done == 5 * GIB


def test_killed_between_the_note_and_the_start_it_is_started_after_all(
    played: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.ask()
    with monkeypatch.context() as killed:
        killed.setattr(loop, "_start", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            played.move()
    assert played.mover.started == []

    played.move(at_s=1)

    assert [order.key for order in played.mover.started] == [played.transfer().key]
    assert played.transfer().attempts == 1


def test_killed_between_the_start_and_the_next_look_it_is_started_once(played: Scene) -> None:
    played.ask()
    played.move()
    Transfer.objects.update(seen_at=None)  # whatever came after the start was not written
    played.move(at_s=1)

    assert len(played.mover.started) == 1


def test_a_machine_that_is_away_for_a_moment_changes_nothing(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.is_away = True
    played.move(at_s=599)
    assert played.transfer().next_attempt_at is None

    played.move(at_s=601)
    assert played.transfer().next_attempt_at is not None


def test_trouble_with_one_does_not_keep_the_others_waiting(
    played: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = services.create_dataset(name="b", size_gib=1, at_domains=["far"], actor=None, at=later(0))
    first = played.ask()
    second = played.ask(dataset_id=other.pk)
    real = loop._begin

    def begin(transfer: Transfer, *more: Any) -> int:
        if transfer.pk == first.pk:
            raise RuntimeError("a row that makes no sense")
        return real(transfer, *more)

    monkeypatch.setattr(loop, "_begin", begin)
    played.move()

    assert [order.key for order in played.mover.started] == [second.key]


@pytest.mark.django_db(transaction=True)
def test_a_second_worker_goes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene(tmp_path)
    monkeypatch.setattr(choice, "mover_named", lambda name: made.mover)
    made.ask()
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [loop._LOCK])
        made.move()
        assert made.mover.started == []
    finally:
        other.close()
    wait_until(lambda: made.move() or made.mover.started, "the lock of a worker that is gone")
    assert connection.is_usable()


# Where it comes from, and where to --------------------------------------------------------------------------


def test_the_quickest_copy_is_taken(played: Scene) -> None:
    quick = domain("quick", "storage")
    store(quick, f"{played.root}/quick", 9.0)
    services.set_copies(dataset_id=played.dataset.pk, at_domains=["far", "quick"], actor=None, at=later(0))
    Store.objects.filter(domain=played.near).update(rate_gib_per_s=5.0)
    played.ask()
    played.move()

    assert played.transfer().from_domain == quick


@pytest.mark.parametrize(
    ("base_uri", "said"),
    [("s3://sets/far", ""), ("node7:/data/far", "")],
)
def test_the_mover_follows_from_the_addresses(played: Scene, base_uri: str, said: str) -> None:
    Store.objects.filter(domain=played.far).update(base_uri=base_uri)
    played.ask()
    played.move()

    assert played.transfer().mover == ("s3" if base_uri.startswith("s3") else "rsync")
    assert played.transfer().error == said


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda made: Copy.objects.all().delete(), "There is no copy of imagenet to fetch."),
        (lambda made: Store.objects.filter(domain=made.near).delete(), "near has no store"),
        (lambda made: Store.objects.filter(domain=made.far).delete(), "No copy of imagenet lies in a store"),
        (
            lambda made: Store.objects.update(base_uri="node7:/data/x"),  # neither end within reach
            "No copy of imagenet lies in a store",
        ),
        (lambda made: Copy.objects.update(uri="/etc/passwd"), "No copy of imagenet lies in a store"),
    ],
)
def test_where_nothing_leads_it_says_so(played: Scene, spoil: Callable[[Scene], Any], said: str) -> None:
    played.ask()
    spoil(played)
    played.move(at_s=1)

    assert played.transfer().error.startswith(said)
    assert played.transfer().ended_at == later(1)


def test_a_store_that_moved_between_two_attempts_gets_a_move_of_its_own(played: Scene) -> None:
    played.ask()
    played.move()
    played.mover.say(MoveState.FAILED, error="away")
    played.move(at_s=1)
    Store.objects.filter(domain=played.near).update(base_uri=f"{played.root}/elsewhere")
    played.move(at_s=60)

    first, second = played.mover.started
    assert played.mover.cancelled == [first.key]
    assert second.key != first.key
    assert second.target.uri == f"{played.root}/elsewhere/imagenet"


def test_the_lower_of_two_limits_holds(played: Scene) -> None:
    Store.objects.filter(domain=played.far).update(most_gib_per_s=0.5)
    Store.objects.filter(domain=played.near).update(most_gib_per_s=0.25)
    played.ask()
    played.move()

    assert played.mover.started[0].most_bytes_per_s == 0.25 * GIB


# Cancelling -------------------------------------------------------------------------------------------------


def test_what_is_cancelled_ends_when_its_mover_has_ended_it(played: Scene) -> None:
    made = played.ask()
    played.move()
    olga = person("olga", "operator")
    for _ in range(2):
        services.cancel_transfer(transfer_id=made.pk, actor=olga, at=later(1))
    played.move(at_s=2)

    assert played.mover.cancelled == [made.key]
    assert (played.transfer().ended_at, played.transfer().error) == (later(2), "It was cancelled by olga.")
    assert len(played.events("transfer_cancel_asked")) == 1
    assert played.ask(at_s=3) is None  # not begun again under the hands of whoever cancelled it


def test_what_was_not_begun_is_cancelled_at_once(played: Scene) -> None:
    made = played.ask()
    services.cancel_transfer(transfer_id=made.pk, actor=None, at=later(1))
    played.move(at_s=2)

    assert played.mover.started == []
    assert played.transfer().ended_at == later(2)


def test_what_arrived_before_it_was_cancelled_has_arrived(played: Scene) -> None:
    made = played.ask()
    played.move()
    played.mover.say(MoveState.DONE, bytes_total=GIB)
    services.cancel_transfer(transfer_id=made.pk, actor=None, at=later(1))
    played.move(at_s=2)

    assert played.is_there()


# Simulated --------------------------------------------------------------------------------------------------


def test_data_of_a_simulated_hall_arrives_when_it_is_expected_and_says_so() -> None:
    far, near = domain("far", "storage"), domain("near", "storage")
    node(storage=near)  # of a simulated cluster
    dataset = services.create_dataset(name="x", size_gib=100, at_domains=["far"], actor=None, at=later(0))
    made = Scene(dataset, near, far, Path())
    made.ask()
    made.move(at_s=2)
    made.move(at_s=99)
    assert not made.is_there()
    assert made.transfer().is_simulated

    made.move(at_s=101)

    assert made.is_there()
    assert made.transfer().expected_end_at == later(100)
    assert made.events("transfer_ended")[0].data["is_simulated"]
    dataset.refresh_from_db()
    assert dataset.size_gib == 100.0


# The real thing ---------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path, requires_program: Callable[..., str]) -> Scene:
    requires_program("rsync")
    return scene(tmp_path)


def _until_over(made: Scene) -> Transfer:
    def is_over() -> bool:
        # Attempts come without their pauses: the clock of the loop is a test's own.
        loop.move_all(at=clock.now())
        Transfer.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=later(0))
        return made.transfer().ended_at is not None

    wait_until(is_over, "the end of the transfer")
    return made.transfer()


def test_a_real_copy_arrives_though_its_mover_is_killed(real: Scene) -> None:
    files = content(12 * MIB, 4 * MIB)
    lay(real.root / "far/imagenet", files)
    Store.objects.update(most_gib_per_s=4 / 1024)
    services.request_stage(
        dataset_id=real.dataset.pk, to_domain_id=real.near.pk, for_job_id=7, at=clock.now()
    )
    loop.move_all(at=clock.now())

    def is_under_way() -> bool:
        loop.move_all(at=clock.now())
        return real.transfer().bytes_done > MIB

    wait_until(is_under_way, "the first bytes")
    assert not real.is_there()
    kill(real.transfer().key)
    Store.objects.update(most_gib_per_s=None)

    found = _until_over(real)

    assert (found.error, found.attempts) == ("", 2)
    assert read(real.root / "near/imagenet") == files
    assert real.is_there()
    real.dataset.refresh_from_db()
    assert real.dataset.size_gib == sum(map(len, files.values())) / GIB


def test_what_is_too_big_for_its_store_is_refused_before_a_byte_is_sent(
    real: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sparse file: larger than any disk it is asked to go to, and no larger than nothing here.
    folder = lay(real.root / "far/imagenet", {"small": b"x"})
    free = shutil.disk_usage(real.root).free
    with (folder / "huge").open("wb") as file:
        file.truncate(free + 10 * GIB)
    monkeypatch.setattr(loop, "MOST_ATTEMPTS", 1)
    services.request_stage(
        dataset_id=real.dataset.pk, to_domain_id=real.near.pk, for_job_id=7, at=clock.now()
    )

    found = _until_over(real)

    assert found.error.startswith("There is no room")
    assert found.bytes_done == 0
    assert list((real.root / "near").glob("imagenet")) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "far/imagenet/out").symlink_to("/etc/passwd"), "cannot be copied whole"),
        (lambda root: (root / "far/imagenet/up").symlink_to("../../secret"), "cannot be copied whole"),
        (lambda root: _replace_by_link(root / "far/imagenet", root / "secret"), "lies outside the store"),
        (lambda root: _replace_by_link(root / "near/imagenet", root / "secret"), "something else"),
    ],
)
def test_a_link_that_leads_out_is_refused(real: Scene, spoil: Callable[[Path], Any], said: str) -> None:
    lay(real.root / "far/imagenet", {"x": b"x"})
    lay(real.root / "secret", {"key": b"of another"})
    spoil(real.root)
    services.request_stage(
        dataset_id=real.dataset.pk, to_domain_id=real.near.pk, for_job_id=7, at=clock.now()
    )

    found = _until_over(real)

    assert said in found.error
    assert found.attempts == 1  # no hope that it goes away
    assert not real.is_there()
    assert read(real.root / "secret") == {"key": b"of another"}


def _replace_by_link(path: Path, to: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(to)


def test_a_store_that_is_not_mounted_is_not_filled(real: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(real.root / "far/imagenet", {"x": b"x"})
    (real.root / "near").rmdir()
    monkeypatch.setattr(loop, "MOST_ATTEMPTS", 1)
    services.request_stage(
        dataset_id=real.dataset.pk, to_domain_id=real.near.pk, for_job_id=7, at=clock.now()
    )

    assert "is not there" in _until_over(real).error
    assert not (real.root / "near").exists()


def test_moves_that_are_long_over_are_forgotten(real: Scene) -> None:
    lay(real.root / "far/imagenet", {"x": b"x"})
    services.request_stage(
        dataset_id=real.dataset.pk, to_domain_id=real.near.pk, for_job_id=7, at=clock.now()
    )
    _until_over(real)
    wait_until(lambda: not builders.carriers(real.transfer().key), "the end of the carrier")

    assert loop.prune(at=clock.now()) == 0
    assert loop.prune(at=clock.now() + 2 * loop.KEPT_FOR) == 1
