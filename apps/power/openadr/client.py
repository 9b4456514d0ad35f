"""Speaks with a VTN as a VEN, OpenADR 3.0.1 and 3.1.0: programmes, events, registration, reports.

A listing is complete or an error, so that the absence of an event may be taken for its end. Answers are bounded in
size and time. Secrets and tokens are in no repr, message or log.
"""

import json
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

import httpx

from apps.core import clock
from apps.core.errors import InvalidInput, OutsideError
from apps.power.openadr.wire import Version, told

PAGE: Final = 50  # the schema's own bound
MAX_PAGES: Final = 200
_TRIES: Final = 3  # of a listing that moves while it is read
_MAX_BYTES: Final = 8 * 2**20
_USUAL_TOKEN_S: Final = 300.0  # of a token whose end is not said
_LONGEST_TOKEN_S: Final = 86_400.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_OBJECT_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}", re.ASCII)
_MAX_RETRY_S: Final = 3600.0


class VtnError(OutsideError):
    """The VTN, or the way to it, failed.

    Attributes:
        status: HTTP status. 0: none came.
        title: Of the problem, in the VTN's words.
    """

    def __init__(self, message: str, *, status: int = 0, title: str = "", permanent: bool = False) -> None:
        super().__init__(message, permanent=permanent)
        self.status, self.title = status, title


class VtnUnreachable(VtnError):
    """No answer, or none in time."""


class VtnBusy(VtnError):
    """The VTN says that it cannot now (429, 5xx).

    Attributes:
        retry_after_s: When to ask again, if it says. None: it does not.
    """

    retry_after_s: float | None = None


class VtnRefused(VtnError):
    """The VTN does not want to (4xx); asking again the same way cannot help."""


class NotAuthorised(VtnRefused):
    """No token was granted, or a fresh one is not good enough."""


class BadAnswer(VtnError):
    """The VTN answered what cannot be used: too much, no JSON, not what the schema says."""


class ListingIncomplete(VtnError):
    """A listing could not be read whole; nothing may be concluded from what is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a VEN must know. Wrong ones are refused when they are made.

    Attributes:
        vtn_url: Base of the API, without a slash at the end; https, but for this machine.
        token_url: Empty: asked of the VTN (3.1.0), or its own /auth/token (3.0.1).
        scope: Of the token; most servers need none.
        program_ids: The programmes listened to. Empty: every one that the VTN shows us.
        timeout_s: For each request as a whole.
        ca_file: Certificates to trust in place of the system's.
    """

    vtn_url: str
    client_id: str
    client_secret: str = field(repr=False)
    ven_name: str
    resource_names: tuple[str, ...] = ()
    program_ids: tuple[str, ...] = ()
    token_url: str = ""
    scope: str = ""
    version: Version = Version.V3_1_0
    timeout_s: float = 15.0
    verify_tls: bool = True
    ca_file: str = ""
    max_bytes: int = _MAX_BYTES

    def __post_init__(self) -> None:
        _require_safe(self.vtn_url, "vtn_url")
        if self.token_url:
            _require_safe(self.token_url, "token_url")
        if not self.client_id:
            raise InvalidInput.of("client_id", "must not be empty")
        if not self.client_secret:
            raise InvalidInput.of("client_secret", "must not be empty")
        for path, name in [
            ("ven_name", self.ven_name),
            *(("resource_names", n) for n in self.resource_names),
        ]:
            if not 1 <= len(name) <= 128:
                raise InvalidInput.of(path, "must have 1 to 128 characters")
        for program_id in self.program_ids:
            if not _OBJECT_ID.fullmatch(program_id):
                raise InvalidInput.of("program_ids", "must be letters, digits, - and _")
        if not 0 < self.timeout_s <= 300:
            raise InvalidInput.of("timeout_s", "must be more than 0 and at most 300")
        if self.version not in tuple(Version):
            raise InvalidInput.of("version", "must be 3.0.1 or 3.1.0")


@dataclass(frozen=True, slots=True)
class Listing:
    """Every event of the programmes, as it came. Empty program_ids: of all programmes."""

    program_ids: tuple[str, ...]
    events: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """Under which ids the VTN knows us and our resources (by name)."""

    ven_id: str
    resource_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str = field(repr=False)
    good_until_s: float  # on the monotonic clock


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: bytes = field(repr=False)


class Ven:
    """One VEN's connection to its VTN. Not shared between threads; close it, or use it in `with`.

    Args:
        budget_s: For all that is asked together; after it nothing is asked any more.
    """

    def __init__(self, settings: Settings, *, budget_s: float = math.inf) -> None:
        self._settings = settings
        self._give_up_at_s = clock.monotonic_s() + budget_s
        self._token: _Token | None = None
        self._spent = ""  # the token before: a server may yet repeat it
        self._token_url = settings.token_url
        self._http = httpx.Client(
            verify=_tls(settings),
            timeout=settings.timeout_s,
            follow_redirects=False,  # a redirect would carry the token somewhere else
            trust_env=not _is_loopback(settings.vtn_url),  # proxies, where the VTN is outside
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": "switchyard-ven",
            },
        )

    def __enter__(self) -> "Ven":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ven({self._settings.ven_name!r} at {self._settings.vtn_url!r})"

    def close(self) -> None:
        self._http.close()
        self._token = None

    # What a VEN asks.

    def programs(self) -> list[object]:
        """Every programme that the VTN shows us.

        Raises:
            VtnError: of one kind or another; the same for every other question.
        """
        return self._list("programs", {})

    def events(self, program_id: str = "", *, active: bool | None = None) -> list[object]:
        """Every event of one programme (empty: of all).

        Args:
            active: 3.1.0 only: leave the choice to the VTN. Servers differ in whether an event yet to come is active;
                from such a listing absence must not be concluded.

        Raises:
            ListingIncomplete: it was too long, or moved whenever it was read.
        """
        query = {"programID": program_id} if program_id else {}
        if active is not None and self._settings.version is Version.V3_1_0:
            query["active"] = "true" if active else "false"
        return self._list("events", query)

    def listing(self) -> Listing:
        """Every event of the programmes in the settings: whole, or an error."""
        program_ids = self._settings.program_ids
        found: list[object] = []
        for program_id in program_ids or ("",):
            found += self.events(program_id)
        return Listing(program_ids, tuple(found))

    def register(self) -> Registration:
        """Make the VEN and its resources known to the VTN, where they are not yet. Repeating it changes nothing."""
        name = self._settings.ven_name
        kind = {"objectType": "VEN_VEN_REQUEST"} if self._is_3_1 else {}
        ven_id = self._find_or_make("vens", {}, "venName", name, {**kind, "venName": name})
        resources: dict[str, str] = {}
        for resource in self._settings.resource_names:
            body = {"resourceName": resource}
            if self._is_3_1:
                body = {"objectType": "VEN_RESOURCE_REQUEST", "venID": ven_id, **body}
                made = self._find_or_make("resources", {"venID": ven_id}, "resourceName", resource, body)
            else:
                made = self._find_or_make(f"vens/{ven_id}/resources", {}, "resourceName", resource, body)
            resources[resource] = made
        return Registration(ven_id, resources)

    def send_report(self, report: Mapping[str, Any], report_id: str = "") -> str:
        """Send a report, or replace the one of that id; its id.

        A report that is there already (same event, client and name) is replaced; one that is gone is sent anew.
        """
        if report_id:
            _require_id(report_id)
            try:
                return _id_of(self._ask("PUT", f"reports/{report_id}", body=report), report_id)
            except VtnRefused as refused:
                if refused.status != 404:
                    raise
        try:
            return _id_of(self._ask("POST", "reports", body=report))
        except VtnRefused as refused:
            if refused.status != 409:
                raise
            there = self._same_report(report)
            if not there:
                raise
        return _id_of(self._ask("PUT", f"reports/{there}", body=report), there)

    # How it asks.

    @property
    def _is_3_1(self) -> bool:
        return self._settings.version is Version.V3_1_0

    def _same_report(self, report: Mapping[str, Any]) -> str:
        query = {"eventID": str(report.get("eventID", "")), "clientName": str(report.get("clientName", ""))}
        for there in self._list("reports", query):
            if isinstance(there, dict) and there.get("reportName") == report.get("reportName"):
                return _id_of(there)
        return ""

    def _find_or_make(
        self, path: str, query: Mapping[str, str], key: str, name: str, body: Mapping[str, Any]
    ) -> str:
        if found := self._find(path, query, key, name):
            return found
        try:
            return _id_of(self._ask("POST", path, body=body))
        except VtnRefused as refused:
            # Somebody was quicker: then it is there now.
            if refused.status != 409 or not (found := self._find(path, query, key, name)):
                raise
            return found

    def _find(self, path: str, query: Mapping[str, str], key: str, name: str) -> str:
        for there in self._list(path, {**query, key: name}):
            # A server may not know the filter, and list them all.
            if isinstance(there, dict) and there.get(key) == name:
                return _id_of(there)
        return ""

    def _list(self, path: str, query: Mapping[str, str]) -> list[object]:
        for _ in range(_TRIES):
            found = self._walk(path, query)
            if found is not None:
                return found
        raise ListingIncomplete(f"The list of {path} changed whenever it was read.")

    def _walk(self, path: str, query: Mapping[str, str]) -> list[object] | None:
        """Read a list page by page. None: it moved meanwhile.

        Each page begins with the last item of the one before: were something deleted in between, what follows would
        move up and an item be skipped unseen, and a skipped event would pass for a cancelled one. The last page is
        the one that brings nothing new; a short one proves nothing, as a server may have a lower bound of its own.
        """
        found: list[object] = []
        for _ in range(MAX_PAGES):
            skip = max(0, len(found) - 1)
            page = self._ask("GET", path, query={**query, "skip": str(skip), "limit": str(PAGE)})
            if not isinstance(page, list):
                raise BadAnswer(f"The VTN's list of {path} is none.", status=200)
            if found and (not page or _key(page[0]) != _key(found[-1])):
                return None
            fresh = page[1:] if found else page
            if not fresh:
                return found
            found += fresh
        raise ListingIncomplete(f"The list of {path} has more than {MAX_PAGES} pages.")

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """One question with a token; once more with a fresh one if it is not good (any more)."""
        url = f"{self._settings.vtn_url.rstrip('/')}/{path}"
        answer = self._send(method, url, query=query, body=body, token=self._good_token())
        if answer.status == 401:
            self._spent, self._token = self._token.text if self._token else "", None
            answer = self._send(method, url, query=query, body=body, token=self._good_token())
        if not 200 <= answer.status < 300:
            raise self._failure(answer, f"{method} /{path}")
        return self._json(answer) if answer.body else None

    def _good_token(self) -> str:
        if self._token is None or clock.monotonic_s() >= self._token.good_until_s:
            self._token = self._fetch_token()
        return self._token.text

    def _fetch_token(self) -> _Token:
        settings = self._settings
        form = {
            "grant_type": "client_credentials",
            "client_id": settings.client_id,
            "client_secret": settings.client_secret,
        }
        if settings.scope:
            form["scope"] = settings.scope
        answer = self._send("POST", self._where_tokens_are(), form=form)
        if answer.status in (400, 401, 403):
            title = self._title(answer)
            raise NotAuthorised(
                f"No token was granted: {title or answer.status}.",
                status=answer.status,
                title=title,
                permanent=True,
            )
        if answer.status != 200:
            raise self._failure(answer, "the request for a token")
        granted = self._json(answer)
        if not isinstance(granted, dict):
            raise BadAnswer("The answer to the request for a token is no object.", status=200)
        text, kind, lasts_s = (
            granted.get("access_token"),
            granted.get("token_type"),
            granted.get("expires_in"),
        )
        if not isinstance(text, str) or not _TOKEN.fullmatch(text):
            raise BadAnswer("The answer to the request for a token holds none.", status=200)
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise BadAnswer("The token is of a type other than Bearer.", status=200)
        if isinstance(lasts_s, bool) or not isinstance(lasts_s, int | float) or not lasts_s >= 0:
            lasts_s = _USUAL_TOKEN_S
        lasts_s = min(float(lasts_s), _LONGEST_TOKEN_S)
        # Renewed a little early: it must not run out on its way.
        return _Token(text, clock.monotonic_s() + lasts_s - min(30.0, lasts_s / 10))

    def _where_tokens_are(self) -> str:
        if self._token_url:
            return self._token_url
        base = self._settings.vtn_url.rstrip("/")
        if not self._is_3_1:
            self._token_url = f"{base}/auth/token"
            return self._token_url
        answer = self._send("GET", f"{base}/auth/server")
        if answer.status != 200:
            raise self._failure(answer, "GET /auth/server")
        told_us = self._json(answer)
        url = told_us.get("tokenURL") if isinstance(told_us, dict) else None
        if not isinstance(url, str):
            raise BadAnswer("The VTN does not say where tokens are.", status=200)
        try:
            _require_safe(url, "tokenURL")
        except InvalidInput:
            raise BadAnswer("The VTN names a place for tokens that is not safe.", status=200) from None
        if _is_loopback(url) and not _is_loopback(self._settings.vtn_url):
            raise BadAnswer("The VTN names this machine as the place for tokens.", status=200)
        self._token_url = url
        return url

    def _send(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        form: Mapping[str, str] | None = None,
        token: str = "",
    ) -> _Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        now_s = clock.monotonic_s()
        left_s = min(self._settings.timeout_s, self._give_up_at_s - now_s)
        if left_s <= 0:
            raise VtnUnreachable("The VTN took too long over all that was asked.")
        deadline_s = now_s + left_s
        try:
            with self._http.stream(
                method, url, params=query, json=body, data=form, headers=headers, timeout=left_s
            ) as response:
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    # None was asked for; unpacked, a few bytes could fill the memory.
                    raise BadAnswer("The VTN's answer is packed.", status=response.status_code)
                read = bytearray()
                for chunk in response.iter_raw():  # as it comes: gathered, a trickle would pass the deadline
                    read += chunk
                    if len(read) > self._settings.max_bytes:
                        raise BadAnswer(
                            f"The VTN's answer is larger than {self._settings.max_bytes} bytes.",
                            status=response.status_code,
                        )
                    if clock.monotonic_s() > deadline_s:  # a trickle keeps every single read in time
                        raise VtnUnreachable(f"The VTN did not finish within {left_s:.3g} s.")
                return _Answer(response.status_code, response.headers, bytes(read))
        # Without the cause: the library's errors hold the request, and with it what must not be logged.
        except httpx.TimeoutException:
            raise VtnUnreachable(f"The VTN did not answer within {left_s:.3g} s.") from None
        except httpx.TransportError as error:
            raise VtnUnreachable(f"The VTN cannot be reached: {self._clean(str(error))}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BadAnswer(f"The VTN's answer cannot be read: {self._clean(str(error))}") from None

    def _json(self, answer: _Answer) -> Any:
        try:
            return json.loads(answer.body, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise BadAnswer("The VTN's answer is no JSON.", status=answer.status) from None

    def _failure(self, answer: _Answer, asked: str) -> VtnError:
        status, title = answer.status, self._title(answer)
        said = f"The VTN answered {asked} with {status}{f': {title}' if title else ''}."
        if status in (401, 403):
            return NotAuthorised(said, status=status, title=title, permanent=True)
        if status == 429 or status >= 500:
            busy = VtnBusy(said, status=status, title=title)
            wait = answer.headers.get("Retry-After", "")
            busy.retry_after_s = min(float(wait), _MAX_RETRY_S) if re.fullmatch(r"\d{1,9}", wait) else None
            return busy
        if 300 <= status < 400:
            return BadAnswer(
                f"The VTN sends {asked} elsewhere, which is not followed.", status=status, permanent=True
            )
        return VtnRefused(said, status=status, title=title, permanent=True)

    def _title(self, answer: _Answer) -> str:
        """What a problem, or an OAuth error, calls itself."""
        try:
            problem = json.loads(answer.body)
        except (ValueError, RecursionError):
            return ""
        if not isinstance(problem, dict):
            return ""
        said = problem.get("title") or problem.get("error")
        return self._clean(said) if isinstance(said, str) else ""

    def _clean(self, text: str) -> str:
        """Text from outside without our secrets: some servers repeat what they were sent."""
        secret = self._settings.client_secret
        for hidden in (secret, quote_plus(secret), self._token.text if self._token else "", self._spent):
            if hidden:
                text = text.replace(hidden, "***")
        return told(text)[:200]


def _require_safe(url: str, path: str) -> None:
    """Only TLS keeps a secret; this machine itself is no way at all."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidInput.of(path, "must be a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise InvalidInput.of(path, "must be a URL, such as https://vtn.example/openadr3/3.1.0")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput.of(path, "must not hold a user or password")
    if parts.query or parts.fragment:
        raise InvalidInput.of(path, "must not hold a query or fragment")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise InvalidInput.of(path, "must be https")


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def _tls(settings: Settings) -> ssl.SSLContext | bool:
    if not settings.verify_tls:
        return False
    if not settings.ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError:
        raise InvalidInput.of("ca_file", "is no file of certificates") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _key(item: object) -> object:
    """By what an item of a list is known again: its id; without one, all of it."""
    return item.get("id", item) if isinstance(item, dict) else item


def _require_id(text: str) -> None:
    # It becomes a part of a path.
    if not _OBJECT_ID.fullmatch(text):
        raise BadAnswer("An id of the VTN is not made of letters, digits, - and _.")


def _id_of(made: object, otherwise: str = "") -> str:
    name = made.get("id", otherwise) if isinstance(made, dict) else otherwise
    if not isinstance(name, str):
        raise BadAnswer("The VTN gives what it made no id.")
    _require_id(name)
    return name
