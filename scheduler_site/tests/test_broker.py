"""The embedded broker: nothing twice, nothing torn."""

import threading
from queue import Empty

import pytest
from kombu import Connection

from scheduler_site import broker

broker.register()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "broker").mkdir()
    return tmp_path / "broker"


def channel(folder):
    options = {"data_folder_in": str(folder), "data_folder_out": str(folder)}
    return Connection("switchyard-files://", transport_options=options).channel()


def take_all(from_channel, queue):
    taken = []
    try:
        while True:
            taken.append(from_channel._get(queue))
    except Empty:
        return taken


def test_messages_come_in_order_and_once(folder):
    sender = channel(folder)
    for i in range(5):
        sender._put("planning", {"i": i})

    assert sorted(message["i"] for message in take_all(channel(folder), "planning")) == list(range(5))
    assert take_all(channel(folder), "planning") == []


def test_a_queue_does_not_see_anothers_messages(folder):
    sender = channel(folder)
    sender._put("power", {"i": 1})

    assert take_all(sender, "planning") == []
    assert sender._size("power") == 1


def test_of_many_readers_each_message_reaches_one(folder):
    sender, taken = channel(folder), []
    for i in range(200):
        sender._put("planning", {"i": i})
    readers = [
        threading.Thread(target=lambda: taken.extend(take_all(channel(folder), "planning"))) for _ in range(6)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

    assert sorted(message["i"] for message in taken) == list(range(200))


def test_a_message_half_written_when_its_sender_died_is_nobodys(folder):
    sender = channel(folder)
    (folder / "1_x.writing").write_text('{"i":')

    assert take_all(sender, "planning") == []


def test_a_folder_swept_away_is_made_again(folder):
    sender = channel(folder)
    folder.rmdir()

    assert take_all(sender, "planning") == []
    sender._put("planning", {"i": 1})
    assert take_all(sender, "planning") == [{"i": 1}]
