"""Reads the few environment variables by which a site differs from the next."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


class BadEnvironment(Exception):
    """An environment variable says something that cannot be meant."""


def flag(name: str, default: bool) -> bool:
    """A yes or no, written as 1/0, true/false, yes/no or on/off."""
    text = os.environ.get(name, "").strip().lower()
    if not text:
        return default
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise BadEnvironment(f"{name} is {text!r}; say 1 or 0.")


def count(name: str, default: int) -> int:
    """A whole number from 0 to 10^15."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadEnvironment(f"{name} is {text!r}; say a whole number.")
    return int(text)


def words(name: str, default: list[str]) -> list[str]:
    """A list of words, parted by commas."""
    if name not in os.environ:
        return default
    return [word.strip() for word in os.environ[name].split(",") if word.strip()]


def database(url: str) -> dict[str, Any]:
    """Django's description of the database that a URL names. PostgreSQL only.

    `postgresql://user:password@host:port/name?option=value`; a socket folder is given as `?host=/folder`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise BadEnvironment(f"DATABASE_URL begins with {parts.scheme!r}; only postgresql:// is supported.")
    options: dict[str, str] = dict(parse_qsl(parts.query))
    host = options.pop("host", None) or unquote(parts.hostname or "")
    port = options.pop("port", None) or (str(parts.port) if parts.port else "")
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise BadEnvironment("DATABASE_URL names no database (the part after the last slash).")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": port,
        "OPTIONS": options,
    }


def own_url(hosts: Sequence[str], *, is_https: bool, environ: Mapping[str, str] = os.environ) -> str:
    """How others reach this site, without a slash at the end: SWITCHYARD_URL, or else what the rest lets guess."""
    if said := environ.get("SWITCHYARD_URL", ""):
        return said.rstrip("/")
    # A pattern is no address.
    named = next((host for host in hosts if host and not host.startswith((".", "*"))), None)
    if named is not None:
        return f"{'https' if is_https else 'http'}://{named}"
    return f"http://127.0.0.1:{environ.get('PORT') or 8000}"


def secret_key(var: Path, environ: Mapping[str, str] = os.environ) -> str:
    """SECRET_KEY from the environment, else one made once and kept in var/ for its owner alone."""
    if given := environ.get("SECRET_KEY"):
        return given
    path = var / "secret-key"
    if not path.exists():
        var.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"secret-key.{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_urlsafe(64))
        # link() fails when another process was first; both then read the same key.
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text().strip()
