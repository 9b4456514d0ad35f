"""Asks a Prometheus for the present values of a query, by its HTTP API.

An answer is whole or an error. What it says is bounded in size and time, and nothing of it is followed elsewhere.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from apps.core import clock
from apps.core.errors import InvalidInput, OutsideError

_MAX_BYTES: Final = 64 * 2**20  # a hundred thousand series with their labels
_MAX_SERIES: Final = 200_000
_TOLD: Final = 200  # characters of what it says went wrong
_UNSEEN: Final = re.compile(r"[^\x20-\x7e\u00a0-\uffff]+")


class MeterError(OutsideError):
    """The source, or the way to it, failed; its message is for people, and names no address."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value, with what it belongs to and when it was really taken."""

    labels: Mapping[str, str]
    at: datetime
    value: float


def require_address(url: str, path: str = "url") -> None:
    """Refuse what is no plain base address: credentials would be shown to whoever may see the source."""
    try:
        parts = urlsplit(url)
        is_plain = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidInput.of(path, "must be an address such as http://prometheus:9090") from None
    if parts.scheme not in ("http", "https") or not is_plain:
        raise InvalidInput.of(path, "must be an address such as http://prometheus:9090")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput.of(path, "must not hold a name or a password")
    if parts.query or parts.fragment or "\\" in url or any(c.isspace() for c in url):
        raise InvalidInput.of(path, "must end with its path")


def ask(
    url: str, query: str, *, at: datetime, timeout_s: float, max_bytes: int = _MAX_BYTES
) -> tuple[Series, ...]:
    """The present value of every series of an instant query.

    Prometheus gives a series that fell silent for minutes as if it were of now. So it is asked a second time, for
    the instants at which the values were really taken; a computed value is of the instant of the question.

    Args:
        at: The instant that is asked for, of both.
        timeout_s: For everything together.

    Raises:
        MeterError: no answer, an error, or an answer that cannot be used.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    # No proxy of the environment: meters are near by, and a proxy would be told of them.
    with httpx.Client(timeout=timeout_s, follow_redirects=False, trust_env=False) as http:
        values = list(_vector(_answer(http, url, query, at, deadline_s, max_bytes)))
        if not values:
            return ()
        taken = _vector(_answer(http, url, f"timestamp({query})", at, deadline_s, max_bytes))
        taken_at = {_key(labels): value for labels, _, value in taken}
    found = []
    for labels, asked_s, value in values:
        taken_s = taken_at.get(_key(labels), asked_s)
        when_s = min(taken_s, asked_s) if isfinite(taken_s) else asked_s
        found.append(Series(labels, _instant(when_s), value))
    return tuple(found)


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    # A function gives its result without the name of the metric.
    return tuple(sorted((name, value) for name, value in labels.items() if name != "__name__"))


def _answer(http: httpx.Client, url: str, query: str, at: datetime, deadline_s: float, max_bytes: int) -> Any:
    address = f"{url.rstrip('/')}/api/v1/query"
    read = bytearray()
    try:
        # By POST, so that no query is too long for an address; as it says in Prometheus' own words.
        told = {"query": query, "time": f"{at.timestamp():.3f}"}
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        left_s = max(0.05, deadline_s - clock.monotonic_s())
        with http.stream("POST", address, data=told, headers=headers, timeout=left_s) as response:
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise MeterError("The answer is packed, which was not asked for.")
            for chunk in response.iter_raw():
                read += chunk
                if len(read) > max_bytes:
                    raise MeterError(f"The answer is larger than {max_bytes} bytes.")
                if clock.monotonic_s() > deadline_s:  # a trickle keeps every single read in time
                    raise MeterError("It did not finish answering in time.")
            status = response.status_code
    except httpx.TimeoutException:
        raise MeterError("It did not answer in time.") from None
    except httpx.HTTPError as error:
        raise MeterError(f"It cannot be reached: {_told(str(error))}") from None
    except (httpx.InvalidURL, ValueError):
        raise MeterError("It cannot be reached: its address is none.", permanent=True) from None
    return _data(status, bytes(read))


def _data(status: int, body: bytes) -> Any:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        raise MeterError(f"It answered {status}, and nothing that Prometheus says.")
    if answer["status"] == "error":
        raise MeterError(f"It refuses the query: {_told(answer.get('error'))}")
    if status != 200:
        raise MeterError(f"It answered {status}.")
    return answer.get("data")


def _vector(data: Any) -> Iterator[tuple[Mapping[str, str], float, float]]:
    """Labels, instant and value of each series; a value that is no number comes as nan."""
    if not isinstance(data, dict) or data.get("resultType") != "vector":
        raise MeterError("The query does not answer a vector, one value a series.")
    result = data.get("result")
    if not isinstance(result, list) or len(result) > _MAX_SERIES:
        raise MeterError("The answer has no list of series, or one that is too long.")
    for one in result:
        labels = one.get("metric") if isinstance(one, dict) else None
        pair = one.get("value") if isinstance(one, dict) else None
        if not isinstance(labels, dict) or not isinstance(pair, list) or len(pair) != 2:
            raise MeterError("A series of the answer has no labels, or no value.")
        if not all(isinstance(value, str) for value in labels.values()):
            raise MeterError("A label of the answer is no text.")
        yield labels, _number(pair[0]), _number(pair[1])


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def _instant(at_s: float) -> datetime:
    if not 0 < at_s < 1e10:
        raise MeterError("A series of the answer is of no instant.")
    return datetime.fromtimestamp(round(at_s, 3), UTC)


def _told(text: object) -> str:
    if not isinstance(text, str) or not text:
        return "it does not say why"
    return _UNSEEN.sub(" ", text)[:_TOLD]
