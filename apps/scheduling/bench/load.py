"""Asks a web server for as much as it can give, and counts what both sides spent on it.

The asking shares the machine's processors with the server: what it takes is measured, and kept small. One thread of a
process of its own sends requests that are written beforehand and reads no more of an answer than it must.
"""

import resource
import selectors
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Final

import psutil

from apps.core import clock

_READ: Final = 1 << 18


class LoadFailed(Exception):
    """The server refused something, or went away."""


@dataclass(frozen=True, slots=True)
class Told:
    """How it went, from outside."""

    n_answers: int
    wall_s: float
    waits_s: tuple[float, ...]
    generator_cpu_s: float

    @property
    def median_wait_s(self) -> float:
        return median(self.waits_s)


def post_all(port: int, secret: str, path: str, bodies: Sequence[bytes], *, n_clients: int) -> Told:
    """Send every body once, from several clients at a time, each on a connection of its own.

    Raises:
        LoadFailed: if one is not answered by 201.
    """
    # A child of `fork` would share our connection to the database.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_post_all, args=(theirs, port, _heads(secret, path, bodies), n_clients))
    child.start()
    theirs.close()
    try:
        told = ours.recv()
    except EOFError:
        raise LoadFailed("whoever asks the server died") from None
    finally:
        child.join()
    if isinstance(told, str):
        raise LoadFailed(told)
    assert isinstance(told, Told)
    return told


def _heads(secret: str, path: str, bodies: Sequence[bytes]) -> list[bytes]:
    return [
        (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        + body
        for body in bodies
    ]


@dataclass(eq=False, slots=True)
class _Client:
    """One connection, with a request under way or none left."""

    line: socket.socket
    left: bytes = b""
    got: bytearray = field(default_factory=bytearray)
    sent_s: float = 0.0


def _post_all(told: Connection, port: int, requests: Sequence[bytes], n_clients: int) -> None:
    try:
        told.send(_run(port, deque(requests), n_clients))
    except (LoadFailed, OSError) as error:
        told.send(f"{error}")


def _run(port: int, requests: deque[bytes], n_clients: int) -> Told:
    n_requests, waits_s = len(requests), list[float]()
    with selectors.DefaultSelector() as lines:
        began_cpu_s, began_s = _own_cpu_s(), clock.monotonic_s()
        for _ in range(min(n_clients, n_requests)):
            client = _Client(socket.create_connection(("127.0.0.1", port), timeout=60))
            client.line.setblocking(False)
            lines.register(client.line, selectors.EVENT_WRITE, client)
            _begin(client, requests.popleft())
        while len(waits_s) < n_requests:
            for key, events in lines.select(timeout=60):
                client = key.data
                if events & selectors.EVENT_WRITE:
                    client.left = client.left[client.line.send(client.left) :]
                    if not client.left:
                        lines.modify(client.line, selectors.EVENT_READ, client)
                elif _is_answered(client):
                    waits_s.append(clock.monotonic_s() - client.sent_s)
                    if requests:
                        _begin(client, requests.popleft())
                        lines.modify(client.line, selectors.EVENT_WRITE, client)
                    else:
                        lines.unregister(client.line)
                        client.line.close()
        wall_s = clock.monotonic_s() - began_s
        return Told(n_requests, wall_s, tuple(waits_s), _own_cpu_s() - began_cpu_s)


def _begin(client: _Client, request: bytes) -> None:
    client.left, client.sent_s = request, clock.monotonic_s()
    client.got.clear()


def _is_answered(client: _Client) -> bool:
    some = client.line.recv(_READ)
    if not some:
        raise LoadFailed("the server hung up")
    client.got += some
    end = client.got.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(client.got[:end])
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:")
    if len(client.got) < end + 4 + length:
        return False
    if not head.startswith(b"HTTP/1.1 201"):
        raise LoadFailed(f"it answered {bytes(client.got[:600])!r}")
    return True


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(eq=False)
class Spent:
    """Processor seconds of the servers, filled in when the watch is over."""

    web_s: float = 0.0
    database_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.web_s + self.database_s


@contextmanager
def watched(web_pid: int, database_pid: int) -> Iterator[Spent]:
    """Measure what the web server and the database use of the processors meanwhile."""
    spent = Spent()
    before = _tree_cpu_s(web_pid), _tree_cpu_s(database_pid)
    yield spent
    spent.web_s, spent.database_s = _tree_cpu_s(web_pid) - before[0], _tree_cpu_s(database_pid) - before[1]


def _tree_cpu_s(pid: int) -> float:
    """Of a process, of those below it, and of children that ended."""
    top = psutil.Process(pid)
    total = top.cpu_times().children_user + top.cpu_times().children_system
    for process in (top, *top.children(recursive=True)):
        try:
            times: Any = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return float(total)
