"""Posts to addresses that people typed, and never to what only this site can reach.

An address is looked up once, every answer is held against what may be reached, and the connection goes to that very
answer: a name that means something else a moment later leads nowhere. No redirect is followed, no proxy asked.
"""

import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpcore
import httpx
from django.conf import settings

from apps.core import clock
from apps.core.errors import InvalidInput, OutsideError

LONGEST_URL: Final = 1000
_TIMEOUT_S: Final = 10.0
_TRANSIENT: Final = frozenset({408, 425, 429})
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Sequence[str]]


class WebhookFailed(OutsideError):
    """The message did not arrive. `permanent`: the same again would not either."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be reached beside the public internet, by the word of whoever runs the site."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def by_settings(cls) -> "Allowed":
        hosts, networks = set(), []
        for word in settings.SWITCHYARD_WEBHOOK_ALLOWED:
            try:
                networks.append(ipaddress.ip_network(word, strict=False))
            except ValueError:
                hosts.add(word.lower())
        return cls(frozenset(hosts), tuple(networks))

    def covers(self, host: str, address: Address) -> bool:
        is_named = any(one.version == address.version and address in one for one in self.networks)
        return host in self.hosts or is_named


def require_good(url: str) -> str:
    """The host of an address that a message could be posted to; raises InvalidInput. Nothing is looked up."""
    parts = _parts(url)
    allowed = Allowed.by_settings()
    host = (parts.hostname or "").lower()
    literal = _literal(host)
    if parts.scheme != "https" and not (parts.scheme == "http" and _may_be_plain(host, literal, allowed)):
        raise InvalidInput.of("webhook_url", "must begin with https://", "invalid")
    if literal is not None and not _is_reachable(host, literal, allowed):
        raise InvalidInput.of("webhook_url", "leads to a private address", "private_address")
    return host


def post_text(url: str, text: str, *, resolve: Resolver | None = None) -> None:
    """Post a message as Slack, Mattermost and others take it: `{"text": ...}`.

    Raises:
        WebhookFailed
    """
    try:
        host = require_good(url)
    except InvalidInput as refusal:
        # It was good when it was entered: whoever runs the site allows less now.
        raise WebhookFailed(f"The address {refusal.errors[0]['message']}.", permanent=True) from None
    body = json.dumps({"text": text}).encode()
    headers = [("Content-Type", "application/json"), ("User-Agent", "Switchyard")]
    backend = _Guarded(resolve or _by_system, clock.monotonic_s() + _TIMEOUT_S)
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=httpx.create_ssl_context(trust_env=False), network_backend=backend
            ) as pool,
            # What it answers beside the status is of no use, and is not read.
            pool.stream("POST", url, headers=headers, content=body) as answer,
        ):
            status = answer.status
    except httpcore.TimeoutException:
        raise WebhookFailed(f"{host} did not answer in time.") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol):
        # What the library says may name the whole address, which is a secret.
        raise WebhookFailed(f"{host} could not be reached.") from None
    if 200 <= status < 300:
        return
    is_permanent = 300 <= status < 500 and status not in _TRANSIENT
    raise WebhookFailed(f"{host} answered {status}.", permanent=is_permanent)


class _Guarded(httpcore.NetworkBackend):
    """Connects to what may be reached, and to nothing longer than until a deadline, however slowly it answers."""

    def __init__(self, resolve: Resolver, deadline_s: float) -> None:
        self._resolve, self._deadline_s = resolve, deadline_s

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        address = _resolved(host, port, self._resolve)
        stream = httpcore.SyncBackend().connect_tcp(str(address), port, timeout=_left_s(self._deadline_s))
        return _Timed(stream, self._deadline_s)


class _Timed(httpcore.NetworkStream):
    """A connection of which nothing takes longer than until the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline_s: float) -> None:
        self._stream, self._deadline_s = stream, deadline_s

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left_s(self._deadline_s))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left_s(self._deadline_s))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self._stream.start_tls(ssl_context, server_hostname, _left_s(self._deadline_s))
        return _Timed(inner, self._deadline_s)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - clock.monotonic_s()
    if left_s <= 0:
        raise httpcore.ReadTimeout
    return left_s


def _parts(url: str) -> SplitResult:
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInput.of("webhook_url", "is not an address", "invalid")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput.of("webhook_url", "is not an address", "invalid") from None
    if not parts.hostname or parts.username is not None or parts.password is not None or port == 0:
        raise InvalidInput.of("webhook_url", "is not an address", "invalid")
    return parts


def _resolved(host: str, port: int, resolve: Resolver) -> Address:
    """Where a host is; raises WebhookFailed unless all of its addresses may be reached."""
    literal = _literal(host)
    try:
        found = [literal] if literal is not None else [_address(one) for one in resolve(host, port)]
    except (OSError, UnicodeError, ValueError):
        found = []
    if not found:
        raise WebhookFailed(f"{host} has no address.")
    allowed = Allowed.by_settings()
    if not all(_is_reachable(host, one, allowed) for one in found):
        raise WebhookFailed(f"{host} leads to a private address.", permanent=True)
    return found[0]


def _by_system(host: str, port: int) -> list[str]:
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _literal(host: str) -> Address | None:
    """An address as it was typed; None: a name. Forms that only C reads (0x7f.1, 2130706433) go by the resolver."""
    try:
        return _address(host)
    except ValueError:
        return None


def _may_be_plain(host: str, literal: Address | None, allowed: Allowed) -> bool:
    return host in allowed.hosts or (literal is not None and allowed.covers(host, literal))


def _is_reachable(host: str, address: Address, allowed: Allowed) -> bool:
    return allowed.covers(host, address) or all(
        one.is_global and not one.is_multicast for one in _inner(address)
    )


def _inner(address: Address) -> list[Address]:
    """An address, and those of IPv4 that it leads to."""
    found: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return [address.ipv4_mapped]
        if address in _NAT64:
            found = [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
        if address.sixtofour is not None:
            found.append(address.sixtofour)
        if address.teredo is not None:
            found.extend(address.teredo)
    return found
