"""What an operator fills in to plan a curtailment, and what that is to the services; times are of the site's zone."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final

from django.http import HttpRequest, QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from apps.core.errors import DomainError
from apps.power.curtailment.facts import Lever
from apps.power.response import TargetKind
from apps.power.response_services import EventDraft
from apps.scheduling.response.deciding import Wish

KINDS: Final = (TargetKind.SHED_BY.value, TargetKind.LIMIT_TO.value)
# Of the levers a person may choose; what stops a job at once is for emergencies, which are announced elsewhere.
LEVERS: Final = (Lever.CAP.value, Lever.SHRINK.value, Lever.PAUSE.value)
_TEXTS: Final = (
    "domain",
    "programme",
    "kind",
    "value",
    "start",
    "minutes",
    "until",
    "reason",
    "confirmation",
    "exempt_jobs",
)
_KEPT: Final = tuple(name for name in _TEXTS if name not in ("confirmation", "exempt_jobs"))
_FIELDS: Final = (*_TEXTS, "levers", "exempt_teams")
_ASKED_ALWAYS: Final = ("levers", "exempt_jobs")
_ASKED: Final = ("kind", "value", "domain", "programme", "start", "minutes", "until", *_ASKED_ALWAYS)
_FIELD_OF_PATH: Final = {
    "target_kind": "kind",
    "start_at": "start",
    "ramp_start_at": "start",
    "notified_at": "start",
    "end_at": "minutes",
    "wish": "levers",
}
_MOST: Final = 1000
_LONGEST_MINUTES: Final = 31 * 1440


@dataclass
class WishForm:
    """What was typed and ticked, and what is wrong with it.

    Attributes:
        draft_number: Of the draft that it was opened from.
        page: Which page of the jobs that are touched is looked at; 0: the first few.
        shown_start_at, shown_end_at: The times that the preview was of; they hold as long as nobody typed others.
    """

    values: dict[str, str]
    levers: frozenset[str] = frozenset(LEVERS)
    exempt_jobs: frozenset[int] = frozenset()
    exempt_teams: frozenset[str] = frozenset()
    allowed_jobs: frozenset[int] = frozenset()
    is_test: bool = False
    is_low_meant: bool = False
    typed_exempt: frozenset[int] = frozenset()
    page: int = 0
    draft_number: int | None = None
    shown_start_at: datetime | None = None
    shown_end_at: datetime | None = None
    errors: dict[str, list[str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    @classmethod
    def new(cls, domain: str) -> "WishForm":
        """An empty one."""
        empty = dict.fromkeys(_TEXTS, "")
        return cls(values=empty | {"domain": domain, "kind": KINDS[0], "minutes": "60"})

    @classmethod
    def of_post(cls, request: HttpRequest) -> "WishForm":
        """As it was sent."""
        told = request.POST
        form = cls(values={name: _text(told, name) for name in _TEXTS})
        form.levers = frozenset(told.getlist("levers")) & frozenset(LEVERS)
        form.is_test, form.is_low_meant = "is_test" in told, "is_low_meant" in told
        form.draft_number = _small(told.get("draft", ""))
        page = told.get("go") or told.get("page", "")
        form.page = _small(page) or 0
        form.exempt_teams = frozenset(name[:200] for name in told.getlist("exempt_teams")[:_MOST])
        form.allowed_jobs = _ids(told.getlist("allow"))
        form.typed_exempt = _ids(form.values["exempt_jobs"].replace(",", " ").split(), form)
        dropped = _ids(told.getlist("listed")) - _ids(told.getlist("keep"))
        form.exempt_jobs = form.typed_exempt | _ids(told.getlist("exempt")) | dropped
        if told.get("shown_times") == form.typed_times:
            form.shown_start_at, form.shown_end_at = (
                _instant(told, "shown_start"),
                _instant(told, "shown_end"),
            )
        return form

    @classmethod
    def of_draft(cls, fields: Mapping[str, Any]) -> "WishForm":
        """As it was kept by as_draft(), maybe by a release that knew other fields."""
        form = cls.new("")
        form.values |= {name: str(fields[name]) for name in _KEPT if name in fields}
        form.levers = frozenset(fields.get("levers", LEVERS)) & frozenset(LEVERS)
        form.exempt_teams = frozenset(fields.get("exempt_teams", ()))
        form.exempt_jobs = frozenset(fields.get("exempt_ids", ()))
        form.is_test, form.is_low_meant = bool(fields.get("is_test")), bool(fields.get("is_low_meant"))
        return form

    def as_draft(self) -> dict[str, Any]:
        """What of it is worth keeping: what was typed and ticked, but no confirmation."""
        return {
            **{name: self.values[name] for name in _KEPT},
            "levers": sorted(self.levers),
            "exempt_teams": sorted(self.exempt_teams),
            "exempt_ids": sorted(self.exempt_jobs),
            "is_test": self.is_test,
            "is_low_meant": self.is_low_meant,
        }

    @property
    def name(self) -> str:
        """What it asks for, in a few words."""
        how = "at most " if self.values["kind"] == KINDS[1] else ""
        what = f"{how}{self.values['value']} kW" if self.values["value"] else "no target yet"
        return f"{what}, {self.values['domain']}" if self.values["domain"] else what

    @property
    def typed_times(self) -> str:
        """Stands for the times as they were typed."""
        typed = "\n".join(self.values.get(name, "") for name in ("start", "minutes", "until"))
        return hashlib.sha256(typed.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def is_empty(self) -> bool:
        """Nobody has said yet how much."""
        return not self.values["value"]

    @property
    def is_faulty(self) -> bool:
        return bool(self.errors or self.others)

    def fault(self, path: str, message: str) -> None:
        """Note what is wrong beside the field that stands for a path."""
        head = path.split(".")[0].split("[")[0]
        name = _FIELD_OF_PATH.get(head, head)
        if name == "minutes" and self.values.get("until"):
            name = "until"
        if name in _FIELDS:
            self.errors.setdefault(name, []).append(message)
        else:
            self.others.append(f"{path} {message}" if path else message)

    def refuse(self, refusal: DomainError) -> None:
        """Note what a service holds against it."""
        for error in refusal.errors:
            self.fault(error["path"], _in_words(error["message"]))
        if not refusal.errors:
            self.others.append(refusal.message)

    def wish(self) -> Wish:
        return Wish(
            levers=self.levers,
            exempt_jobs=self.exempt_jobs,
            exempt_teams=self.exempt_teams,
            allowed_jobs=self.allowed_jobs - self.exempt_jobs,
        )

    def check_levers(self) -> None:
        if not self.levers:
            self.fault("levers", "Tick at least one.")

    def draft(self, at: datetime, *, as_shown: bool = False) -> EventDraft | None:
        """The event that is asked for; None: something cannot be read, which is noted beside its field.

        Args:
            as_shown: With the times of the preview: what starts "now" started when it was looked at.
        """
        self.check_levers()
        value_kw = self._number("value")
        start_at = self._time("start") or at
        end_at = self._time("until")
        if end_at is None:
            minutes = self._number("minutes")
            if minutes is not None and not 0 < minutes <= _LONGEST_MINUTES:
                self.fault("minutes", f"must be more than 0 and at most {_LONGEST_MINUTES}")
                minutes = None
            end_at = None if minutes is None else start_at + timedelta(minutes=minutes)
        if self.values["kind"] not in KINDS:
            self.fault("kind", "must be one of the two")
        if self.errors or value_kw is None or end_at is None:
            return None
        if as_shown and self.shown_start_at is not None and self.shown_end_at is not None:
            start_at, end_at = self.shown_start_at, self.shown_end_at
        return EventDraft(
            domain=self.values["domain"],
            target_kind=self.values["kind"],
            value=value_kw * 1000,
            start_at=start_at,
            end_at=end_at,
            programme=self.values["programme"] or None,
            is_test=self.is_test,
            reason=self.values["reason"][:500],
        )

    def _number(self, name: str) -> float | None:
        text = self.values[name].replace("\u202f", "").replace("\u00a0", "").replace(" ", "")
        if not text:
            self.fault(name, "is missing")
            return None
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not isfinite(number) or not 0 <= number < 1e9:
            self.fault(name, "must be a number, such as 250")
            return None
        return number

    def _time(self, name: str) -> datetime | None:
        text = self.values[name]
        if not text:
            return None
        try:
            then = parse_datetime(text)
        except ValueError:
            then = None
        if then is None:
            self.fault(name, "must be a date and a time")
            return None
        return timezone.make_aware(then) if timezone.is_naive(then) else then


def context_of(form: WishForm, *, is_announced: bool) -> Mapping[str, Any]:
    """What the templates of the form read; of an event that is announced only its levers and exemptions are asked."""
    return {
        "form": form,
        "v": form.values,
        "fields": _ASKED_ALWAYS if is_announced else _ASKED,
    }


def _in_words(message: str) -> str:
    """What a service says, with the names of kinds as the form has them."""
    return message.replace(TargetKind.SHED_BY.value, '"Reduce by"').replace(
        TargetKind.LIMIT_TO.value, '"Hold at most"'
    )


def _text(told: QueryDict, name: str) -> str:
    return told.get(name, "").strip()[:500].replace("\x00", "")


def _small(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _ids(words: Sequence[str], form: WishForm | None = None) -> frozenset[int]:
    found = set()
    for word in words[:_MOST]:
        if word.isascii() and word.isdigit() and len(word) <= 18:
            found.add(int(word))
        elif form is not None:
            form.fault("exempt_jobs", "must be ids of jobs, such as 48213")
            break
    return frozenset(found)


def _instant(told: QueryDict, name: str) -> datetime | None:
    try:
        then = datetime.fromisoformat(told.get(name, ""))
    except ValueError:
        return None
    return None if timezone.is_naive(then) else then
