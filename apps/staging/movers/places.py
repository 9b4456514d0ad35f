"""Addresses of stores and copies: what they mean, and whether one lies within another. Pure.

/data/sets, file:///data/sets    a folder of this machine
node7:/data/sets                 a folder of another one, by ssh; `user@` may stand before it
s3://bucket/sets                 objects of an S3-compatible store
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote

from apps.staging.movers.base import MoveError

LONGEST_URI = 1000
HIDDEN = ".switchyard-"  # what lies half-done in a store begins like this
_SSH = re.compile(r"((?:[a-z_][a-z0-9_-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*):(/.*)", re.ASCII)
_S3 = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/.*)?", re.ASCII)
_FORMS = "must be a folder (/data or file:///data), host:/folder or s3://bucket/prefix"

Scheme = Literal["file", "ssh", "s3"]


class BadAddress(ValueError):
    """An address that means nothing here, or would lead out of its store. The message goes on after a field's name."""


@dataclass(frozen=True, slots=True)
class Location:
    """An address taken apart."""

    scheme: Scheme
    host: str  # machine or bucket; empty: this machine
    path: str  # absolute; of objects: the key, without a slash at its ends

    def is_within(self, base: "Location") -> bool:
        """Is it the base, or below it? By the letter: links are for those who can see the folder."""
        if (self.scheme, self.host) != (base.scheme, base.host):
            return False
        return self.path == base.path or self.path.startswith(
            base.path.rstrip("/") + "/" if base.path else ""
        )


def parse(uri: str) -> Location:
    """Take an address apart. Raises BadAddress."""
    if len(uri) > LONGEST_URI:
        raise BadAddress(f"must have at most {LONGEST_URI} characters")
    if not uri.isprintable():
        raise BadAddress("must not contain control or invisible characters")
    if uri.startswith("s3:"):
        found = _S3.fullmatch(uri)
        if found is None:
            raise BadAddress("must be s3://bucket/prefix, without a name or a key in it")
        return Location("s3", found[1], _checked(found[2] or "/").strip("/"))
    if uri.startswith("file:"):
        if not uri.startswith("file:///"):
            raise BadAddress("must have three slashes: file:///folder")
        path = unquote(uri.removeprefix("file://"), errors="strict") if _is_utf8(uri) else ""
        if not path.isprintable() or not path:
            raise BadAddress("must not contain control or invisible characters")
        return Location("file", "", _checked(path))
    if uri.startswith("/"):
        return Location("file", "", _checked(uri))
    if found := _SSH.fullmatch(uri):
        return Location("ssh", found[1], _checked(found[2]))
    raise BadAddress(_FORMS)


def joined(base_uri: str, name: str) -> str:
    """The address of `name` right below a base."""
    return f"{base_uri.rstrip('/')}/{quote(name) if base_uri.startswith('file:') else name}"


def located(place: Mapping[str, Any]) -> Location:
    """Where one end of a move lies (`uri`, below `base_uri`). Raises MoveError, for good."""
    try:
        return require_within(place["uri"], place["base_uri"])
    except BadAddress as error:
        raise MoveError(f"{place['uri']} {error}.", permanent=True) from None


def require_within(uri: str, base_uri: str) -> Location:
    """The place, if it is below the base, and not the base itself. Raises BadAddress."""
    place, base = parse(uri), parse(base_uri)
    if place == base or not place.is_within(base):
        raise BadAddress(f"must lie below the store's {base_uri}")
    return place


def _is_utf8(uri: str) -> bool:
    try:
        unquote(uri, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


def _checked(path: str) -> str:
    steps = path.strip("/").split("/") if path.strip("/") else []
    if path.startswith("//") or any(step in ("", ".", "..") for step in steps):
        raise BadAddress("must not contain empty steps, . or ..")
    if any(step.startswith(HIDDEN) for step in steps):
        raise BadAddress(f"must not contain names that begin with {HIDDEN}")
    return "/" + "/".join(steps)
