"""What every mover promises, asked of each of them."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.core.errors import OutsideError
from apps.staging.movers.base import MoveOrder, Mover, MoveState, Place
from apps.staging.movers.process import ProcessMover
from apps.staging.movers.simulated import SimulatedMover
from apps.staging.tests.builders import (
    MIB,
    Content,
    carriers,
    content,
    get,
    kill,
    lay,
    now,
    order,
    put,
    read,
    wait_for,
    wait_until,
)
from apps.staging.tests.conftest import PROFILE, SECRET

REAL = ["rsync", "rsync from afar", "rsync to afar", "to objects", "from objects", "objects to objects"]
SLOW = 4.0 * MIB  # bytes per second: slow enough to be met on the way
FILES = content(11 * MIB, 6 * MIB)


@dataclass
class Bench:
    """A mover, and two stores that it can reach."""

    mover: Mover
    source: Place
    target: Place
    fill: Callable[[Content], Any]
    arrived: Callable[[], Content]
    half_done: Callable[[], list[str]] = list
    spoil_target: Callable[[], Any] = lambda: None
    begun: list[str] = field(default_factory=list)

    def order(self, **more: Any) -> MoveOrder:
        made = order(self.source, self.target, **more)
        self.begun.append(made.key)
        return made


@pytest.fixture(params=REAL)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, requires_program: Callable[..., str]
) -> Iterator[Bench]:
    made = _bench(request, tmp_path, requires_program)
    yield made
    for key in made.begun:
        handle = made.mover.handle_of(key)
        if made.mover.poll(handle, at=now()).state in (MoveState.RUNNING, MoveState.LOST):
            made.mover.cancel(handle, at=now())
        wait_until(lambda key=key: not carriers(key), "the end of the carrier")


def _bench(request: pytest.FixtureRequest, tmp_path: Path, requires_program: Callable[..., str]) -> Bench:
    here, there, spool = tmp_path / "here", tmp_path / "there", tmp_path / "spool"
    for folder in (here, there):
        folder.mkdir()
    name: str = request.param
    if "rsync" in name:
        requires_program("rsync")
        rsh = tmp_path / "rsh"
        rsh.write_text(
            '#!/bin/sh\n# rsh [options] host command: "another machine", which is this one\nshift; exec sh -c "$*"\n'
        )
        rsh.chmod(0o755)
        afar = {"from": ("node7:", ""), "to": ("", "node7:")}
        before, after = afar.get(name.removeprefix("rsync ").split()[0], ("", ""))
        return Bench(
            ProcessMover(spool, "rsync", rsh=str(rsh)),
            Place(uri=f"{before}{here}/set", base_uri=f"{before}{here}"),
            Place(uri=f"{after}{there}/a/set", base_uri=f"{after}{there}"),
            lambda files: lay(here / "set", files),
            lambda: read(there / "a/set"),
            lambda: [str(path) for path in there.rglob(".*")],
            lambda: lay(there / "a/set", {"theirs": b"x"}),
        )
    client = request.getfixturevalue("s3")
    objects = [
        Place(uri=f"s3://sets/{prefix}/set", base_uri=f"s3://sets/{prefix}", profile=PROFILE)
        for prefix in ("from", "to")
    ]
    to_s3, from_s3 = name.endswith("to objects"), name.startswith(("from", "objects"))
    return Bench(
        ProcessMover(spool, "s3", part_bytes=5 * MIB),
        objects[0] if from_s3 else Place(uri=f"{here}/set", base_uri=str(here)),
        objects[1] if to_s3 else Place(uri=f"{there}/a/set", base_uri=str(there)),
        (lambda files: put(client, "from/set", files))
        if from_s3
        else (lambda files: lay(here / "set", files)),
        (lambda: get(client, "to/set")) if to_s3 else (lambda: read(there / "a/set")),
        (lambda: [row["Key"] for row in client.list_multipart_uploads(Bucket="sets").get("Uploads", ())])
        if to_s3
        else (lambda: [str(path) for path in there.rglob(".*")]),
        (lambda: put(client, "to/set", {"theirs": b"x"}))
        if to_s3
        else (lambda: lay(there / "a/set", {"theirs": b"x"})),
    )


def under_way(bench: Bench, **more: Any) -> tuple[MoveOrder, str]:
    """A move that is met in its middle."""
    bench.fill(FILES)
    asked = bench.order(most_bytes_per_s=SLOW, **more)
    handle = bench.mover.start(asked, at=now())
    wait_until(lambda: bench.mover.poll(handle, at=now()).bytes_done > MIB, "the first bytes")
    assert bench.mover.poll(handle, at=now()).state == MoveState.RUNNING
    return asked, handle


def test_what_arrives_is_whole_and_counted(bench: Bench) -> None:
    bench.fill(FILES)
    handle = bench.mover.start(bench.order(), at=now())

    found = wait_for(bench.mover, handle, MoveState.DONE, MoveState.FAILED)

    assert found.error == ""
    assert bench.arrived() == FILES
    assert found.bytes_done == found.bytes_total == sum(map(len, FILES.values()))
    assert bench.half_done() == []


def test_nothing_is_to_be_met_at_the_target_before_it_is_whole(bench: Bench) -> None:
    if bench.target.profile:
        return  # objects appear one by one; the copy is only named when all are there
    under_way(bench)

    assert bench.arrived() == {}


def test_a_second_start_leaves_the_first_alone(bench: Bench) -> None:
    asked, handle = under_way(bench)
    before = carriers(asked.key)

    assert bench.mover.start(asked, at=now()) == handle

    assert carriers(asked.key) == before


def test_a_start_after_the_arrival_does_nothing(bench: Bench) -> None:
    bench.fill(FILES)
    asked = bench.order()
    handle = bench.mover.start(asked, at=now())
    wait_for(bench.mover, handle, MoveState.DONE)
    wait_until(lambda: not carriers(asked.key), "the end of the carrier")

    bench.mover.start(asked, at=now())

    assert bench.mover.poll(handle, at=now()).state == MoveState.DONE
    assert carriers(asked.key) == []


def test_what_was_killed_on_the_way_is_lost_and_a_start_brings_it_whole(bench: Bench) -> None:
    asked, handle = under_way(bench)
    kill(asked.key)
    lost = bench.mover.poll(handle, at=now())
    assert lost.state == MoveState.LOST

    assert bench.mover.start(replace(asked, most_bytes_per_s=None), at=now()) == handle

    found = wait_for(bench.mover, handle, MoveState.DONE, MoveState.FAILED)
    assert found.error == ""
    assert bench.arrived() == FILES
    assert bench.half_done() == []


def test_it_outlives_whoever_started_it(bench: Bench) -> None:
    # As far as a mover can tell, a new worker is a new mover on the same spool.
    _asked, handle = under_way(bench)
    mover = bench.mover
    another = ProcessMover(mover._spool, mover._kind, **mover._options)

    assert another.poll(handle, at=now()).state == MoveState.RUNNING
    assert wait_for(another, handle, MoveState.DONE).error == ""


def test_what_is_cancelled_leaves_nothing_half_done(bench: Bench) -> None:
    asked, handle = under_way(bench)

    for _ in range(2):
        bench.mover.cancel(handle, at=now())

    wait_for(bench.mover, handle, MoveState.CANCELLED)
    wait_until(lambda: not carriers(asked.key), "the end of the carrier")
    assert bench.half_done() == []
    bench.mover.start(asked, at=now())
    assert bench.mover.poll(handle, at=now()).state == MoveState.CANCELLED


def test_what_was_killed_can_still_be_cancelled(bench: Bench) -> None:
    asked, handle = under_way(bench)
    kill(asked.key)

    bench.mover.cancel(handle, at=now())

    wait_for(bench.mover, handle, MoveState.CANCELLED)
    assert bench.half_done() == []


def test_a_cancel_before_the_start_keeps_it_from_beginning(bench: Bench) -> None:
    bench.fill(FILES)
    asked = bench.order()
    handle = bench.mover.handle_of(asked.key)
    bench.mover.cancel(handle, at=now())

    assert bench.mover.start(asked, at=now()) == handle

    assert bench.mover.poll(handle, at=now()).state == MoveState.CANCELLED
    assert bench.arrived() == {}


def test_what_never_began_is_unknown(bench: Bench) -> None:
    handle = bench.mover.handle_of(uuid.uuid4().hex)

    assert bench.mover.poll(handle, at=now()).state == MoveState.UNKNOWN


def test_where_there_is_nothing_it_fails_and_says_so(bench: Bench) -> None:
    handle = bench.mover.start(bench.order(), at=now())

    found = wait_for(bench.mover, handle, MoveState.FAILED, MoveState.DONE)

    assert found.state == MoveState.FAILED
    assert "nothing at" in found.error
    assert found.is_permanent


def test_what_failed_goes_on_when_it_is_started_again(bench: Bench) -> None:
    asked = bench.order()
    handle = bench.mover.start(asked, at=now())
    wait_for(bench.mover, handle, MoveState.FAILED)
    bench.fill(FILES)

    bench.mover.start(asked, at=now())

    assert wait_for(bench.mover, handle, MoveState.DONE, MoveState.FAILED).error == ""
    assert bench.arrived() == FILES


def test_what_is_there_already_is_never_written_over(bench: Bench) -> None:
    bench.fill(FILES)
    bench.spoil_target()
    handle = bench.mover.start(bench.order(), at=now())

    found = wait_for(bench.mover, handle, MoveState.FAILED, MoveState.DONE)

    assert "something else" in found.error
    assert found.is_permanent
    assert bench.arrived() == {"theirs": b"x"}


def test_the_same_that_is_there_already_counts_as_arrived(bench: Bench) -> None:
    # Killed between the last step and its note, a move is begun again by another key at the latest.
    bench.fill(FILES)
    for _ in range(2):
        handle = bench.mover.start(bench.order(), at=now())
        found = wait_for(bench.mover, handle, MoveState.FAILED, MoveState.DONE)
        assert found.error == ""

    assert found.bytes_done == found.bytes_total
    assert bench.arrived() == FILES
    assert bench.half_done() == []


@pytest.mark.parametrize("leads_to", ["/etc/passwd", "../../outside"])
def test_a_link_out_of_the_data_set_is_not_followed(bench: Bench, tmp_path: Path, leads_to: str) -> None:
    if bench.source.profile:
        return  # objects know no links
    bench.fill({"x": b"x"})
    lay(tmp_path / "outside", {"key": b"of another"})
    (tmp_path / "here/set/link").symlink_to(leads_to)
    handle = bench.mover.start(bench.order(), at=now())

    found = wait_for(bench.mover, handle, MoveState.FAILED, MoveState.DONE)

    assert (found.state, found.is_permanent) == (MoveState.FAILED, True)
    assert bench.arrived() == {}


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_folder_that_leads_out_of_its_store_is_refused(bench: Bench, tmp_path: Path, end: str) -> None:
    place: Place = getattr(bench, end)
    if place.profile:
        return  # objects know no links
    bench.fill({"x": b"x"})
    (tmp_path / "outside/set").mkdir(parents=True)
    (Path(place.base_uri.removeprefix("node7:")) / "door").symlink_to(tmp_path / "outside")
    through = replace(place, uri=f"{place.base_uri}/door/set")
    handle = bench.mover.start(replace(bench.order(), **{end: through}), at=now())

    found = wait_for(bench.mover, handle, MoveState.FAILED, MoveState.DONE)

    assert "lies outside the store" in found.error
    assert found.is_permanent
    assert list((tmp_path / "outside").rglob("*")) == [tmp_path / "outside/set"]


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_place_outside_its_store_is_refused(bench: Bench, end: str) -> None:
    bench.fill(FILES)
    place = getattr(bench, end)
    outside = replace(place, uri=f"{place.base_uri}/../elsewhere")
    handle = bench.mover.start(replace(bench.order(), **{end: outside}), at=now())

    found = wait_for(bench.mover, handle, MoveState.FAILED, MoveState.DONE)

    assert (found.state, found.is_permanent) == (MoveState.FAILED, True)


def test_another_machines_move_is_out_of_sight_not_lost(bench: Bench, tmp_path: Path) -> None:
    _, handle = under_way(bench)

    with pytest.raises(OutsideError):
        ProcessMover(tmp_path / "another", "rsync").poll(handle, at=now())


def test_no_key_is_written_anywhere(bench: Bench, tmp_path: Path) -> None:
    asked, _handle = under_way(bench)
    kill(asked.key)

    said = [path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file()]

    assert said
    assert not any(SECRET.encode() in text for text in said)


def test_a_single_file_is_a_data_set_too(bench: Bench, s3: Any, tmp_path: Path) -> None:
    data = b"one" * 1000
    if bench.source.profile:
        put(s3, "from/set", {"": data})
    else:
        lay(tmp_path / "here", {"set": data})
    handle = bench.mover.start(bench.order(), at=now())

    assert wait_for(bench.mover, handle, MoveState.DONE, MoveState.FAILED).error == ""

    if bench.target.profile:
        assert s3.get_object(Bucket="sets", Key="to/set")["Body"].read() == data
    else:
        assert (tmp_path / "there/a/set").read_bytes() == data


# The simulated one keeps the same promises with nothing to carry -----------------------------------------------------


@pytest.mark.django_db
class TestSimulated:
    PLACE = Place(uri="", base_uri="")

    def begun(self) -> tuple[SimulatedMover, MoveOrder]:
        mover, asked = SimulatedMover(), order(self.PLACE, self.PLACE)
        assert mover.start(asked, at=asked.begins_at) == mover.handle_of(asked.key)
        return mover, asked

    def test_it_says_that_it_is_simulated(self) -> None:
        assert SimulatedMover.is_simulated

    def test_it_arrives_when_its_time_has_come_and_not_before(self) -> None:
        mover, asked = self.begun()
        middle = asked.begins_at + (asked.arrives_at - asked.begins_at) / 2
        before = mover.poll(asked.key, at=middle)

        assert (before.state, before.bytes_done) == (MoveState.RUNNING, asked.n_bytes // 2)
        assert mover.poll(asked.key, at=asked.arrives_at).state == MoveState.DONE

    def test_a_second_start_changes_nothing(self) -> None:
        mover, asked = self.begun()
        mover.start(replace(asked, arrives_at=asked.arrives_at + timedelta(days=1)), at=now())

        assert mover.poll(asked.key, at=asked.arrives_at).state == MoveState.DONE

    def test_what_is_cancelled_never_arrives(self) -> None:
        mover, asked = self.begun()
        mover.cancel(asked.key, at=asked.begins_at)
        mover.start(asked, at=asked.begins_at)

        assert mover.poll(asked.key, at=asked.arrives_at).state == MoveState.CANCELLED

    def test_a_cancel_before_the_start_keeps_it_from_beginning(self) -> None:
        mover, asked = SimulatedMover(), order(self.PLACE, self.PLACE)
        mover.cancel(asked.key, at=asked.begins_at)
        mover.start(asked, at=asked.begins_at)

        assert mover.poll(asked.key, at=asked.arrives_at).state == MoveState.CANCELLED

    def test_what_never_began_is_unknown(self) -> None:
        assert SimulatedMover().poll("nothing", at=now()).state == MoveState.UNKNOWN
