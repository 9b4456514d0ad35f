"""The audit trail as a file, the oldest entry first: CSV, or JSON lines that are chained.

Each JSON line ends with `chain`, the SHA-256 of the chain before (64 zeros at first) and of the line without it, as it
is written. Entries are never changed, so a later file with the same filter begins with the same lines and chains:
whoever kept the last chain of an earlier one sees whether anything was taken out or altered since.
"""

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse

from apps.events.models import Event

FORMATS: Final[Mapping[str, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl; charset=utf-8",
}
BEGIN: Final = "0" * 64
_MOST: Final = 100_000
_NAMES: Final = (
    "id",
    "at",
    "kind",
    "subject_kind",
    "subject_id",
    "subject_name",
    "actor",
    "source",
    "reason",
    "before",
    "after",
    "data",
)


def answer(rows: QuerySet[Event], kind: str, *, shows_source: bool) -> HttpResponse:
    """A file of the first hundred thousand of these entries, sent while it is read."""
    entries = (_told(one, shows_source) for one in rows.order_by("id")[:_MOST].iterator(chunk_size=2000))
    sent = StreamingHttpResponse(
        _as_csv(entries) if kind == "csv" else chained(entries), content_type=FORMATS[kind]
    )
    sent.headers["Content-Disposition"] = f'attachment; filename="audit.{kind}"'
    return sent  # type: ignore[return-value]  # a streaming answer is an answer; Django's types part them


def chained(entries: Iterator[dict[str, Any]]) -> Iterator[str]:
    """JSON lines, each with its chain."""
    chain = BEGIN
    for entry in entries:
        line = json.dumps(entry, ensure_ascii=False, sort_keys=True)
        chain = hashlib.sha256(f"{chain}{line}".encode()).hexdigest()
        yield f'{line[:-1]}, "chain": "{chain}"}}\n'


def _told(event: Event, shows_source: bool) -> dict[str, Any]:
    """An entry as its readers see it; addresses are for those who audit."""
    return {
        "id": event.pk,
        "at": event.at.isoformat(),
        "kind": event.kind,
        "subject_kind": event.subject_kind,
        "subject_id": event.subject_id,
        "subject_name": event.subject_name,
        "actor": event.actor_name or None,
        "source": event.source if shows_source else None,
        "reason": event.reason,
        "before": event.before,
        "after": event.after,
        "data": event.data,
    }


class _Echo:
    """A file for csv.writer that hands each line straight back."""

    def write(self, line: str) -> str:
        return line


def _as_csv(entries: Iterator[dict[str, Any]]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(_NAMES)
    for entry in entries:
        yield writer.writerow([_cell(entry[name]) for name in _NAMES])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
