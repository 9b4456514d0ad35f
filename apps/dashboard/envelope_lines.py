"""An envelope as lines that people write: days or dates, hours of the local clock, and watts."""

import re
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from apps.power.budget import DAY_MIN, DAYS, EVERY_DAY, Step, clock_of, days_of, mask_of

EVERY: Final = "every day"
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)
_DATES: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?: to (\d{4}-\d\d-\d\d))?", re.ASCII)


@dataclass
class Line:
    """One line of the form.

    Attributes:
        faults: By field, what is wrong with it.
    """

    days: str = ""
    begins: str = ""
    ends: str = ""
    watts: str = ""
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.days or self.begins or self.ends or self.watts)

    @property
    def cells(self) -> tuple[tuple[str, str, str], ...]:
        """(field, text, label) of each column."""
        return (
            ("days", self.days, "Days or dates"),
            ("begins", self.begins, "From"),
            ("ends", self.ends, "Until"),
            ("watts", self.watts, "Limit, W"),
        )

    def step(self, zone: ZoneInfo) -> Step | None:
        """What it means; None with `faults` where it means nothing."""
        begins, ends = self._minute("begins", self.begins), self._minute("ends", self.ends)
        limit_w = self._watts()
        mask, first, last = self._when()
        if begins == DAY_MIN:
            self.faults["begins"] = "must be a time of that day"
        if ends == 0:
            ends = DAY_MIN  # midnight ends a day
        if self.faults or begins is None or ends is None or limit_w is None:
            return None
        if mask:
            if begins == ends:
                self.faults["ends"] = "must not be its beginning"
                return None
            return Step(limit_w, mask, begins, ends)
        assert first is not None
        assert last is not None
        over = timedelta(days=1 if first == last and ends <= begins else 0)
        return Step(limit_w, start_at=_at(first, begins, zone), end_at=_at(last + over, ends, zone))

    def _minute(self, name: str, text: str) -> int | None:
        if not _CLOCK.fullmatch(text):
            self.faults[name] = "must be a time such as 13:00"
            return None
        hours, minutes = text.split(":")
        return int(hours) * 60 + int(minutes)

    def _watts(self) -> float | None:
        try:
            limit_w = float(self.watts)
        except ValueError:
            limit_w = -1.0
        if not 0 <= limit_w <= 1e9:
            self.faults["watts"] = "must be watts, 0 or more"
            return None
        return limit_w

    def _when(self) -> tuple[int, date | None, date | None]:
        """A mask of weekdays, or the first and the last date."""
        if (found := _DATES.fullmatch(self.days)) is not None:
            try:
                first = date.fromisoformat(found[1])
                last = date.fromisoformat(found[2] or found[1])
            except ValueError:
                self.faults["days"] = "must be a date that exists"
                return 0, None, None
            if last < first or not 1970 < first.year <= last.year < 2300:
                self.faults["days"] = "must be dates in order, of these centuries"
            return 0, first, last
        mask = _mask(self.days)
        if not mask:
            self.faults["days"] = "must be days such as Mon-Fri, or a date such as 2026-12-24"
        return mask, None, None


def line_of(step: Step, zone: ZoneInfo) -> Line:
    """A step as a line."""
    watts = f"{step.limit_w:g}" if step.limit_w < 1e6 else f"{step.limit_w:.0f}"
    if step.start_at is None or step.end_at is None:
        return Line(_days(step.weekdays), clock_of(step.from_minute), clock_of(step.until_minute), watts)
    begins, ends = step.start_at.astimezone(zone), step.end_at.astimezone(zone)
    days = begins.date().isoformat()
    if ends.date() != begins.date():
        days += f" to {ends.date().isoformat()}"
    return Line(days, f"{begins:%H:%M}", f"{ends:%H:%M}", watts)


def when_words(step: Step, zone: ZoneInfo) -> str:
    """When a step holds, for people."""
    line = line_of(step, zone)
    return f"{line.days}, {line.begins} to {line.ends}"


def _at(day: date, minute: int, zone: ZoneInfo) -> datetime:
    day += timedelta(days=minute // DAY_MIN)
    minute %= DAY_MIN
    return datetime.combine(day, time(minute // 60, minute % 60), tzinfo=zone)


def _mask(text: str) -> int:
    """The days that a text such as "Mon-Fri, Sun" names; 0: none, or something else."""
    if text.strip().lower() == EVERY:
        return EVERY_DAY
    named: list[str] = []
    for piece in text.replace(",", " ").split():
        ends = [end.capitalize()[:3] for end in piece.split("-")]
        if len(ends) > 2 or any(end not in DAYS for end in ends):
            return 0
        first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
        named += [DAYS[(first + i) % 7] for i in range((last - first) % 7 + 1)]
    return mask_of(named)


def _days(mask: int) -> str:
    """The shortest words for some weekdays: runs of three or more are told by their ends."""
    if mask == EVERY_DAY:
        return EVERY
    pieces: list[list[str]] = []
    for name in days_of(mask):
        if pieces and DAYS.index(pieces[-1][-1]) + 1 == DAYS.index(name):
            pieces[-1].append(name)
        else:
            pieces.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in pieces)
