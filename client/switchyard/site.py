"""The site: where it is, who asks, and one request with its answer."""

from __future__ import annotations

import json
import os
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from typing import Any

OK, USAGE, REFUSED, UNREACHABLE, NOT_YET, FORBIDDEN = 0, 2, 65, 69, 75, 77
TIMED_OUT, CANCELLED, INTERRUPTED = 124, 125, 130

_PATIENCE_S = 60.0  # of one request
_TRIES = 4
_PASSING = (502, 503, 504)


class Trouble(Exception):
    """What ends a command: what to say, and with which exit code."""

    def __init__(self, message: str, code: int, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.problem = problem


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever it points."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


class Site:
    """A site's API, as one person."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise Trouble(f"{url!r} is no address; it must begin with https:// or http://", USAGE)
        if not token or not token.isascii() or not token.isprintable():
            raise Trouble("There is no usable token; make one on your page (/me/)", FORBIDDEN)
        self._token = token
        self._opener = urllib.request.build_opener(_NoRedirect())

    def get(self, path: str, **query: Any) -> Any:
        given = {key: value for key, value in query.items() if value is not None}
        return self._ask("GET", path + (f"?{urllib.parse.urlencode(given)}" if given else ""))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """One POST; asked again by the same key where the network failed, so it acts once."""
        return self._ask("POST", path, body, {"Idempotency-Key": uuid.uuid4().hex})

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(_TRIES):
            is_last = attempt == _TRIES - 1
            asked = urllib.request.Request(  # noqa: S310  (the scheme was looked at)
                f"{self.url}/api/v1/{path}",
                data,
                {"Accept": "application/json", **(headers or {})},
                method=method,
            )
            asked.add_unredirected_header("Authorization", f"Bearer {self._token}")
            if data is not None:
                asked.add_header("Content-Type", "application/json")
            try:
                with self._opener.open(asked, timeout=_PATIENCE_S) as answer:
                    return _parsed(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    wait_s = _wait_s(error, attempt)
                    if is_last or wait_s is None:
                        raise _trouble(error) from None
            except (urllib.error.URLError, OSError) as error:
                if is_last:
                    why = getattr(error, "reason", error)
                    raise Trouble(f"{self.url} cannot be reached: {why}", UNREACHABLE) from None
                wait_s = 0.5 * 2**attempt
            time.sleep(wait_s)
        raise AssertionError("the last try ends it")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise Trouble("What answered is no Switchyard: its answer is no JSON", UNREACHABLE) from None


def _wait_s(error: urllib.error.HTTPError, attempt: int) -> float | None:
    """How long to wait before asking again; None: the answer stands."""
    if error.code == 429:
        said = error.headers.get("Retry-After", "")
        return min(float(said), _PATIENCE_S) if said.isdigit() else 2.0
    return 0.5 * 2**attempt if error.code in _PASSING else None


def _trouble(error: urllib.error.HTTPError) -> Trouble:
    try:
        problem = json.loads(error.read(4_000_000))
    except (ValueError, OSError):
        problem = None
    if not isinstance(problem, dict):
        problem = {"status": error.code, "detail": f"HTTP {error.code} {error.reason}"}
    said = [str(problem.get("detail") or problem.get("title") or f"HTTP {error.code}")]
    faults = problem.get("errors")
    if isinstance(faults, list) and faults:
        said = [
            f"{one.get('path', '')}: {one.get('message', '')}".lstrip(": ")
            for one in faults
            if isinstance(one, dict)
        ]
    if 300 <= error.code < 400:
        said = [
            f"The site points elsewhere ({error.headers.get('Location', '')}); sign in there: switchyard login"
        ]
    if error.code == 401:
        said.append("Sign in with: switchyard login")
    code = (
        FORBIDDEN
        if error.code in (401, 403)
        else UNREACHABLE
        if error.code >= 500 or error.code < 400
        else REFUSED
    )
    return Trouble("\n".join(said), code, problem)


# What is kept between commands -----------------------------------------------------------------------------------


def config_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "switchyard" / "config.json"


def keep(url: str, token: str) -> Path:
    """Write address and token where only this user reads them."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    # Made with its mode, never widened for a moment; and moved into place whole.
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": url, "token": token}, file)
    os.replace(fresh, path)
    return path


def open_site() -> Site:
    """The site by the environment, else as `login` kept it."""
    kept: dict[str, str] = {}
    path = config_path()
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise Trouble(f"{path} can be read by others; mend it with: chmod 600 {path}", FORBIDDEN)
        found = json.loads(path.read_text())
        kept = found if isinstance(found, dict) else {}
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise Trouble(f"{path} cannot be read: {error}", FORBIDDEN) from None
    url = os.environ.get("SWITCHYARD_URL") or str(kept.get("url", ""))
    token = os.environ.get("SWITCHYARD_TOKEN", "")
    if not token and url.rstrip("/") == str(kept.get("url", "")).rstrip("/"):
        token = str(kept.get("token", ""))  # a token goes to the site it was made at, to no other
    if not url or not token:
        raise Trouble(
            "Not signed in. Run: switchyard login (or set SWITCHYARD_URL and SWITCHYARD_TOKEN)", FORBIDDEN
        )
    return Site(url, token)
