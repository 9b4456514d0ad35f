"""Events wake loops, soon and not too often."""

import queue

import pytest
from django.db import connection

from apps.core.presence import Presence, present_roles
from apps.core.wakeup import CHANNEL, DEBOUNCE_S, Debounce, Wake

WAKES = [Wake("job.", "plan"), Wake("allocation.", "reconcile")]


class Bench:
    """A debounce whose clock is set by hand."""

    def __init__(self):
        self.now_s, self.sent = 0.0, []
        self.debounce = Debounce(WAKES, self.sent.append, now_s=lambda: self.now_s)

    def hear(self, *kinds, at_s):
        self.now_s = at_s
        return self.debounce.hear(list(kinds))


def test_the_first_event_is_answered_at_once():
    bench = Bench()
    bench.hear("job.submitted", at_s=5.0)

    assert bench.sent == ["plan"]


def test_a_burst_is_answered_twice_at_its_begin_and_after_the_pause():
    bench = Bench()
    waits_s = [bench.hear("job.submitted", at_s=0.001 * i) for i in range(100)]
    bench.hear(at_s=0.099 + waits_s[-1])

    assert bench.sent == ["plan", "plan"]
    assert max(waits_s[1:]) <= DEBOUNCE_S


def test_an_event_nobody_waits_for_wakes_nobody():
    bench = Bench()
    bench.hear("token.created", at_s=0.0)

    assert bench.sent == []


def test_whoever_begins_to_listen_looks_once():
    bench = Bench()
    bench.hear("", at_s=0.0)

    assert bench.sent == ["plan", "reconcile"]


@pytest.mark.django_db(transaction=True)
def test_a_loop_is_present_and_hears_what_is_committed():
    heard = queue.Queue()

    def hear(kinds):
        for kind in kinds:
            heard.put(kind)
        return 0.1

    presence = Presence(["planning", "power"], channel=CHANNEL, on_heard=hear)
    presence.start()
    assert heard.get(timeout=30) == ""
    assert present_roles() >= {"planning", "power"}

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'job.submitted')", [CHANNEL])
    assert heard.get(timeout=30) == "job.submitted"

    presence.stop()
    presence.join()
    assert not presence.is_alive()
