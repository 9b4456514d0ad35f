"""Demand-response events that were: the history, and the settlement report of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.db.models import Count, Q, QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.dashboard import charts, words
from apps.dashboard.paging import Slice, slice_of
from apps.dashboard.views.common import PAGE_SIZE, act, page, viewer_of
from apps.power import response_selectors, settlement_selectors, settlement_services
from apps.power.models import DemandResponseEvent, SettlementReport
from apps.power.settlement.report import csv_of
from apps.teams import policies

_OPEN: Final = "open"  # in the address, for what is not settled
_KINDS: Final = (("", "Events and drills"), ("event", "Events"), ("drill", "Drills"))
_MOST_NAMES: Final = 500
_MOST_ROWS: Final = 300  # of a table within a page; the file has all


class FilterForm(forms.Form):
    """Which events the history shows."""

    domain = forms.CharField(max_length=200, required=False)
    programme = forms.CharField(max_length=120, required=False)
    outcome = forms.ChoiceField(
        choices=[("", ""), *((key or _OPEN, word.label) for key, word in words.OUTCOMES.items())],
        required=False,
    )
    kind = forms.ChoiceField(choices=_KINDS, required=False)
    begin = forms.DateField(required=False, label="From")
    end = forms.DateField(required=False, label="To")


@dataclass(frozen=True)
class Tile:
    """How many events came out like that; the link shows exactly those."""

    key: str
    word: words.Word
    n: int


def plain(price: Decimal) -> str:
    """As it is written in a contract: 0.4, with as many places as it has."""
    return format(price.normalize(), "f")


@page
@require_GET
def events(request: HttpRequest) -> HttpResponse:
    form = FilterForm(request.GET)
    context: dict[str, Any] = {
        "form": form,
        "kinds": _KINDS,
        "outcomes": [(key or _OPEN, word.label) for key, word in words.OUTCOMES.items()],
        "domains": _names("domain__name"),
        "programmes": [one.name for one in response_selectors.programmes()[:_MOST_NAMES]],
        "is_filtered": any(request.GET.get(name) for name in form.fields),
        "quarter": quarter_of(timezone.localtime(clock.now())),
    }
    if not form.is_valid():
        empty = Slice[DemandResponseEvent]([], "", True)
        return render(request, "dashboard/pages/power_events.html", context | {"found": empty}, status=400)
    apart = _narrowed(settlement_selectors.events_with_results(), form.cleaned_data)
    rows = _of_outcome(apart, form.cleaned_data["outcome"])
    counts = dict(apart.order_by().values_list("outcome").annotate(n=Count("pk")))
    found = slice_of(rows, order=("-start_at", "-id"), after=request.GET.get("after", ""), size=PAGE_SIZE)
    context |= {
        "found": found,
        "rows": [(one, words.OUTCOMES[one.outcome]) for one in found.rows],
        "tiles": [Tile(key or _OPEN, word, counts.get(key, 0)) for key, word in words.OUTCOMES.items()],
        "sums": rows.order_by().aggregate(
            n=Count("pk"),
            credited_wh=Sum("settled_credited_wh"),
            net=Sum("settled_net"),
            lost_device_h=Sum("settled_lost_device_h"),
        ),
        "currency": next((one.settled_currency for one in found.rows if one.settled_currency), ""),  # type: ignore[attr-defined]
    }
    return render(request, "dashboard/pages/power_events.html", context)


def _names(path: str) -> list[str]:
    rows = response_selectors.events().order_by().values_list(path, flat=True).distinct()
    return sorted(rows[:_MOST_NAMES])


def _narrowed(
    rows: QuerySet[DemandResponseEvent], chosen: Mapping[str, Any]
) -> QuerySet[DemandResponseEvent]:
    if chosen["domain"]:
        rows = rows.filter(domain__name=chosen["domain"])
    if chosen["programme"]:
        rows = rows.filter(programme__name=chosen["programme"])
    if chosen["kind"]:
        rows = rows.filter(is_test=chosen["kind"] == "drill")
    if chosen["begin"]:
        rows = rows.filter(end_at__gt=_midnight(chosen["begin"]))
    if chosen["end"]:
        rows = rows.filter(start_at__lt=_midnight(chosen["end"] + timedelta(days=1)))
    return rows


def _of_outcome(rows: QuerySet[DemandResponseEvent], outcome: str) -> QuerySet[DemandResponseEvent]:
    if not outcome:
        return rows
    return rows.filter(Q(outcome="" if outcome == _OPEN else outcome))


def _midnight(day: Any) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min))


def quarter_of(now: datetime) -> str:
    """First day of the quarter of the year."""
    return now.date().replace(month=3 * ((now.month - 1) // 3) + 1, day=1).isoformat()


# The report ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """One line of the table, as numbers."""

    start_at: datetime
    end_at: datetime
    baseline_w: Decimal
    metered_w: Decimal | None
    delivered_w: Decimal | None
    target_w: Decimal
    credited_wh: Decimal
    shortfall_wh: Decimal
    is_compliant: bool
    quality: str
    overlaps: list[str]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Interval":
        numbers = ("baseline_w", "metered_w", "delivered_w", "target_w", "credited_wh", "shortfall_wh")
        return cls(
            start_at=datetime.fromisoformat(told["start_at"]),
            end_at=datetime.fromisoformat(told["end_at"]),
            is_compliant=told["is_compliant"],
            quality=told["quality"],
            overlaps=told["overlaps"],
            **{name: None if told[name] is None else Decimal(told[name]) for name in numbers},  # type: ignore[arg-type]
        )


@page
@require_GET
def report(request: HttpRequest, event_id: int) -> HttpResponse:
    viewer, event = viewer_of(request), response_selectors.event_by_id(event_id)
    versions = list(settlement_selectors.settlements().filter(event=event))
    asked = request.GET.get("version", "")
    shown = next((one for one in versions if not asked or str(one.number) == asked), None)
    if asked and shown is None:
        raise Http404("no such version")
    if shown is not None and request.GET.get("format") == "csv":
        answer = HttpResponse(csv_of(shown.document), content_type="text/csv; charset=utf-8")
        name = f"event-{event.pk}-settlement-{shown.number}.csv"
        answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return answer
    over_at = settlement_services.over_from(event)
    context = {
        "event": event,
        "versions": versions,
        "shown": shown,
        "is_latest": bool(versions) and shown == versions[0],
        "may_settle": policies.may_operate(viewer),
        "over_at": over_at,
        "is_over": clock.now() >= over_at,
        **({} if shown is None else _shown(shown)),
    }
    return render(request, "dashboard/pages/power_event_report.html", context)


def _shown(report: SettlementReport) -> dict[str, Any]:
    told = report.document
    intervals = [Interval.of(one) for one in told["intervals"]]
    adjustment = told["baseline"]["adjustment"]
    return {
        "told": told,
        "outcome": words.OUTCOMES[report.outcome],
        "intervals": intervals[:_MOST_ROWS],
        "n_more": max(0, len(intervals) - _MOST_ROWS),
        "n_proved": sum(one.quality == "ok" for one in intervals),
        "n_kept": sum(one.is_compliant for one in intervals),
        "n_intervals": len(intervals),
        "method": words.METHODS.get(told["baseline"]["method"], told["baseline"]["method"]),
        "days": told["baseline"]["days"],
        "skipped": [one for one in told["baseline"]["skipped"] if one["why"] != "unlike"],
        "adjustment": adjustment and _adjustment(adjustment),
        "terms": {
            **told["terms"],
            "price": plain(Decimal(told["terms"]["price_per_kwh"])),
            "penalty": plain(Decimal(told["terms"]["penalty_per_kwh"])),
            "tolerance": Decimal(told["terms"]["tolerance_share"]),
            "interval_s": Decimal(told["terms"]["interval_s"]),
        },
        "jobs": [
            {
                **job,
                "levers": ", ".join(words.LEVERS.get(one, one) for one in job["lever"].split(", ")),
                "lost": None if job["lost_device_h"] is None else Decimal(job["lost_device_h"]) * 3600,
            }
            for job in told["jobs"][:_MOST_ROWS]
        ],
        "lost_device_s": report.lost_device_h * 3600,
        "plans": [
            {**plan, "committed_at": _instant(plan["committed_at"])} for plan in reversed(told["plans"])
        ],
        "figure": charts.settlement_chart(
            [
                (
                    one.start_at,
                    one.end_at,
                    float(one.baseline_w),
                    float(one.baseline_w - one.target_w),
                    None if one.metered_w is None else float(one.metered_w),
                    one.quality == "ok",
                )
                for one in intervals
            ]
        ),
    }


def _adjustment(told: Mapping[str, Any]) -> dict[str, Any]:
    numbers = ("metered_w", "baseline_w", "ratio", "applied", "cap_share")
    return {
        "start_at": _instant(told["start_at"]),
        "end_at": _instant(told["end_at"]),
        "is_clipped": told["is_clipped"],
        **{name: Decimal(told[name]) for name in numbers},
    }


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@page
@require_POST
def settle(request: HttpRequest, event_id: int) -> HttpResponse:
    viewer, event = viewer_of(request), response_selectors.event_by_id(event_id)
    reason = request.POST.get("reason", "").strip()[:500]
    return act(
        request,
        reverse("dashboard:power-event-report", args=[event.pk]),
        f"Event {event.pk} is settled.",
        lambda: settlement_services.settle_event(
            event_id=event.pk, actor=viewer, at=clock.now(), reason=reason
        ),
    )
