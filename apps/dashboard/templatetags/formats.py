"""How numbers, units and times are written on pages: one module, so that they are the same everywhere.

What is unknown is an en dash, never a zero and never an empty place. Numbers are not localized; digits are
grouped by a narrow no-break space, and a unit never parts from its number. A template gives an empty text for what
is not there, so the filters take anything.
"""

import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core import clock

register = template.Library()

Quantity: TypeAlias = float | int | Decimal | None

UNKNOWN: Final = "–"
GROUP: Final = "\u202f"
SPACE: Final = "\u00a0"
MINUS: Final = "\u2212"
_LONGEST_WITH_SECONDS_S: Final = 600


def _number(value: object) -> float | None:
    """The value as a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return float(value) if math.isfinite(value) else None


def _grouped(value: float, decimals: int = 0) -> str:
    text = f"{abs(value):,.{decimals}f}".replace(",", GROUP)
    is_negative = value < 0 and any(digit not in f"0.{GROUP}" for digit in text)
    return MINUS + text if is_negative else text


def _three_digits(value: float) -> str:
    """Three significant digits: 4.18, 41.8, 418."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return _grouped(value, decimals)


@register.filter
def count(value: Quantity) -> str:
    """3 072"""
    number = _number(value)
    return UNKNOWN if number is None else _grouped(number)


@register.filter
def devices(value: Quantity) -> str:
    """512, or 0.25 for a share of a device."""
    number = _number(value)
    if number is None:
        return UNKNOWN
    if abs(number - round(number)) < 1e-9:
        return _grouped(round(number))
    return f"{number:,.3f}".rstrip("0").rstrip(".").replace(",", GROUP) if abs(number) >= 0.001 else "< 0.001"


@register.filter
def device_hours(device_s: Quantity) -> str:
    """Device-seconds as hours: 58 210, then 418 k, then 1.23 M."""
    number = _number(device_s)
    if number is None:
        return UNKNOWN
    hours = number / 3600
    if abs(hours) < 9.95 and hours:
        return f"{hours:.1f}"
    if abs(hours) < 99_999.5:
        return _grouped(hours)
    if abs(hours) < 999_500:
        return f"{_three_digits(hours / 1e3)}{SPACE}k"
    return f"{_three_digits(hours / 1e6)}{SPACE}M"


@register.filter
def power(value_w: Quantity) -> str:
    """361 kW, 9.4 kW, 2.70 MW; a few watts stay watts."""
    number = _number(value_w)
    if number is None:
        return UNKNOWN
    size = abs(number)
    if 0 < size < 99.5:
        return f"{_grouped(number)}{SPACE}W"
    if size >= 999_500:
        return f"{_grouped(number / 1e6, 2)}{SPACE}MW"
    return f"{_grouped(number / 1e3, 1 if size < 9_950 else 0)}{SPACE}kW"


@register.filter
def watts(value_w: Quantity) -> str:
    """612 W: of one device, where kilowatts would hide what differs."""
    number = _number(value_w)
    return UNKNOWN if number is None else f"{_grouped(number)}{SPACE}W"


@register.filter
def power_number(value_w: Quantity) -> str:
    """The number of `power` alone, for the large figures."""
    return power(value_w).split(SPACE)[0]


@register.filter
def power_unit(value_w: Quantity) -> str:
    """The unit of `power` alone."""
    return power(value_w).rpartition(SPACE)[2] if _number(value_w) is not None else ""


@register.filter
def energy(value_wh: Quantity) -> str:
    """840.0 kWh, 12.4 MWh"""
    number = _number(value_wh)
    if number is None:
        return UNKNOWN
    if abs(number) >= 999_950:
        return f"{_grouped(number / 1e6, 1)}{SPACE}MWh"
    return f"{_grouped(number / 1e3, 1)}{SPACE}kWh"


@register.filter
def kilo(value: Quantity) -> str:
    """Watts as kW, or Wh as kWh, to the watt and without the unit: 140.25. For tables that are added up by hand."""
    number = _number(value)
    if number is None:
        return UNKNOWN
    text = _grouped(number / 1e3, 3)
    return text.rstrip("0").rstrip(".")


@register.filter
def money(value: Quantity) -> str:
    """Whole cents, without the currency: 1 234.50"""
    number = _number(value)
    return UNKNOWN if number is None else _grouped(number, 2)


@register.filter
def share(value: Quantity) -> str:
    """A share in 0..1 as 84.1 %; 106 % at or above one."""
    number = _number(value)
    if number is None:
        return UNKNOWN
    percent = number * 100
    return f"{_grouped(percent, 0 if abs(percent) >= 99.95 else 1)}{SPACE}%"


@register.filter
def change(value: Quantity) -> str:
    """A change of a share, in points: +1.8, −0.6"""
    number = _number(value)
    if number is None:
        return UNKNOWN
    points = round(number * 100, 1)
    return f"+{points:.1f}" if points > 0 else _grouped(points, 1)


@register.filter
def memory(value_gib: Quantity) -> str:
    """512 GiB, 1.5 TiB"""
    number = _number(value_gib)
    if number is None:
        return UNKNOWN
    if number >= 10_240:
        return f"{_grouped(number / 1024, 1)}{SPACE}TiB"
    text = _grouped(number, 1) if number % 1 else _grouped(number)
    return f"{text}{SPACE}GiB"


@register.filter
def temperature(value_c: Quantity) -> str:
    """27.4 °C"""
    number = _number(value_c)
    return UNKNOWN if number is None else f"{_grouped(number, 1)}{SPACE}°C"


@register.filter
def milliseconds(value_ms: Quantity) -> str:
    """38 ms, 1.2 s"""
    number = _number(value_ms)
    if number is None:
        return UNKNOWN
    if number >= 999.5:
        return f"{number / 1000:.1f}{SPACE}s"
    return f"{number:.1f}{SPACE}ms" if 0 < number < 9.95 else f"{_grouped(number)}{SPACE}ms"


@register.filter
def duration(value: Quantity | timedelta) -> str:
    """The two largest units: 1 d 5 h, 2 h 51 min, 18 min, 38 s. Seconds matter only below ten minutes."""
    number = value.total_seconds() if isinstance(value, timedelta) else _number(value)
    if number is None:
        return UNKNOWN
    if number < 0:
        return MINUS + duration(-number)
    total_s = int(number)
    if total_s >= _LONGEST_WITH_SECONDS_S:
        total_s -= total_s % 60
    parts: list[tuple[int, str]] = []
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, total_s = divmod(total_s, length_s)
        if amount or (parts and len(parts) < 2):
            parts.append((amount, unit))
        if len(parts) == 2:
            break
    return " ".join(f"{_grouped(amount)}{SPACE}{unit}" for amount, unit in parts if amount) or f"0{SPACE}s"


@register.filter
def since(then: object) -> str:
    """How long ago that was."""
    return UNKNOWN if not isinstance(then, datetime) else duration(max(timedelta(0), clock.now() - then))


@register.filter
def until(then: object) -> str:
    """How long it is until then; nothing once it has passed."""
    return UNKNOWN if not isinstance(then, datetime) else duration(max(timedelta(0), then - clock.now()))


def moment_text(then: datetime | None, *, now: datetime) -> str:
    """14:38 today, `Tue 17 Nov 14:38` on another day, with the year when that differs; in the site's zone."""
    if then is None:
        return UNKNOWN
    local, here = timezone.localtime(then), timezone.localtime(now)
    clock_time = f"{local:%H:%M}"
    if local.date() == here.date():
        return clock_time
    year = f"{local:%Y} " if local.year != here.year else ""
    return f"{local:%a} {local.day} {local:%b} {year}{clock_time}"


@register.filter
def moment(then: object) -> SafeString | str:
    """A point in time, with its exact form for machines and for the pointer."""
    if not isinstance(then, datetime):
        return UNKNOWN
    exact = timezone.localtime(then).isoformat(timespec="seconds")
    text = moment_text(then, now=clock.now())
    return format_html('<time datetime="{}" title="{}">{}</time>', exact, exact, text)


@register.filter
def exact_moment(then: object) -> SafeString | str:
    """A point in time to the second, for logs and events."""
    if not isinstance(then, datetime):
        return UNKNOWN
    local = timezone.localtime(then)
    text = f"{moment_text(then, now=clock.now())}:{local:%S}"
    return format_html('<time datetime="{}">{}</time>', local.isoformat(timespec="milliseconds"), text)


@register.filter
def site_time(then: datetime) -> str:
    """The site's clock in the top bar, with its zone: Tue 17 Nov 14:38 CET"""
    local = timezone.localtime(then)
    return f"{local:%a} {local.day} {local:%b} {local:%H:%M} {local.tzname()}"


@register.filter
def start_guess(then: object) -> str:
    """An expected start as a range, no finer than it is known: 5 min, 10 min within a day, an hour beyond."""
    if not isinstance(then, datetime):
        return "no forecast yet"
    now = clock.now()
    ahead = then - now
    if ahead <= timedelta(minutes=1):
        return "any moment"
    step_s = 300 if ahead < timedelta(hours=2) else 600 if ahead < timedelta(days=1) else 3600
    low = datetime.fromtimestamp(math.floor(then.timestamp() / step_s) * step_s, tz=then.tzinfo)
    high = low + timedelta(seconds=step_s)
    return f"{moment_text(max(low, now), now=now)}–{timezone.localtime(high):%H:%M}"


@register.filter
def plural(number: Quantity, forms: str) -> str:
    """`{{ n|plural:"job,jobs" }}`: the word alone."""
    one, many = forms.split(",")
    return one if _number(number) == 1 else many
