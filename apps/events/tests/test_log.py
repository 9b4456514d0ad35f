"""The log: written with what happened, never changed, and followed without a gap."""

import threading

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.events import selectors
from apps.events.models import Event
from apps.events.services import CHANNEL, EventRow, record, record_many

committed = pytest.mark.django_db(transaction=True)


def log(kind="node.drained", **more):
    return record(kind, subject_kind="node", subject_id=1, at=clock.now(), **more)


def kinds_after(cursor="", *, viewer_team_ids=None, limit=100, **more):
    batch = selectors.events_after(cursor, viewer_team_ids=viewer_team_ids, limit=limit, **more)
    return [event.kind for event in batch.events]


@pytest.mark.django_db
@pytest.mark.parametrize("change", ["UPDATE events_event SET kind = 'x'", "DELETE FROM events_event"])
def test_what_was_logged_stays(change):
    log()
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)
    assert Event.objects.get().kind == "node.drained"


@committed
def test_an_event_goes_with_its_transaction():
    with transaction.atomic():
        log()
        transaction.set_rollback(True)
    assert not Event.objects.exists()


@committed
def test_a_follower_sees_each_event_once():
    record_many([EventRow(kind=f"a.{n}", subject_kind="a", at=clock.now()) for n in range(5)])
    log("b.0")
    seen, cursor = [], ""
    for _ in range(5):
        batch = selectors.events_after(cursor, viewer_team_ids=None, limit=2)
        seen += [event.kind for event in batch.events]
        cursor = batch.cursor

    assert seen == ["a.0", "a.1", "a.2", "a.3", "a.4", "b.0"]


@committed
def test_an_event_that_commits_late_is_not_skipped():
    is_written, may_commit = threading.Event(), threading.Event()

    def slowly():
        with transaction.atomic():
            log("late.written")
            is_written.set()
            may_commit.wait(10)
        connection.close()

    thread = threading.Thread(target=slowly)
    thread.start()
    is_written.wait(10)
    log("early.written")
    first = selectors.events_after("", viewer_team_ids=None, limit=100)
    may_commit.set()
    thread.join()

    # The later id was there first; it is held back until nothing can come before it.
    assert [event.kind for event in first.events] == []
    assert kinds_after(first.cursor) == ["late.written", "early.written"]


@committed
def test_following_from_the_latest_shows_what_comes_after_it():
    log("a.before")
    cursor = selectors.latest_cursor()
    log("a.after")

    assert kinds_after(cursor) == ["a.after"]


@committed
def test_a_cursor_at_the_end_stays_good():
    log("a.first")
    cursor = selectors.events_after("", viewer_team_ids=None, limit=100).cursor
    assert kinds_after(cursor) == []
    log("a.second")
    assert kinds_after(cursor) == ["a.second"]


@committed
def test_the_business_of_other_teams_is_not_shown():
    log("a.ours", team_id=1)
    log("a.theirs", team_id=2)
    log("a.all")

    assert kinds_after(viewer_team_ids={1}) == ["a.ours", "a.all"]
    assert kinds_after(viewer_team_ids=()) == ["a.all"]


@committed
def test_what_is_private_is_for_its_actor_and_for_auditors(django_user_model):
    ada = django_user_model.objects.create(username="ada")
    log("token.created", actor=ada, is_private=True)

    assert kinds_after(viewer_id=ada.pk) == ["token.created"]
    assert kinds_after(viewer_id=ada.pk + 1) == []
    assert kinds_after(viewer_id=None) == []
    assert kinds_after(sees_private=True) == ["token.created"]


@pytest.mark.parametrize("text", ["x", "1", "1-", "-1-1", "1-1-1", "9" * 30 + "-1", "1-\u0661", "1 - 1"])
def test_what_is_no_cursor_is_refused(text):
    with pytest.raises(InvalidInput):
        selectors.cursor_of(text)


@committed
def test_a_commit_wakes_whoever_listens_once_a_kind():
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        with transaction.atomic():
            record_many([EventRow(kind="job.submitted", subject_kind="job", at=clock.now())] * 3)
            log("node.drained")
        heard = [notice.payload for notice in listener.notifies(timeout=5, stop_after=2)]

    assert sorted(heard) == ["job.submitted", "node.drained"]
