"""OpenADR servers: which are listened to, what they said, and a form to connect to one."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, InvalidInput, NotFound
from apps.core.strict import faults_of
from apps.dashboard.views.common import act, page, viewer_of
from apps.power.openadr_models import VtnConnection, VtnEvent
from apps.power.response_selectors import loads_of, phase_of_event, programmes
from apps.power.selectors import power_domains
from apps.power.vtn import selectors, services
from apps.power.vtn.services import MOST_PARTS, Tried
from apps.power.vtn.spec import ConnectionSpec
from apps.teams import policies
from apps.teams.models import User

_EVENTS_SHOWN: Final = 100
_BLANK_ROWS: Final = 2
_PLAIN: Final = ("name", "base_url", "token_url", "protocol", "client_id", "scope", "ven_name", "domain")
_NUMBERS: Final = ("poll_s", "silent_after_s")
_FLAGS: Final = ("is_shed_negative", "is_test", "has_fallback")
_DEFAULTS: Final = {"protocol": "3.1.0", "poll_s": "60", "silent_after_s": "300"}
_TONES: Final = {"ramping": "info", "active": "info", "notified": "", "recovering": "warn", "cancelled": ""}


@dataclass(frozen=True)
class ConnectionRow:
    """A connection and how it does."""

    connection: VtnConnection
    state: str
    tone: str
    icon: str


@dataclass(frozen=True)
class EventRow:
    """An event of a server, and what became of it here: (event of ours, its phase, tone of that)."""

    event: VtnEvent
    ours: list[tuple[Any, str, str]]
    may_be_accepted: bool


@page
@require_GET
def connections(request: HttpRequest) -> HttpResponse:
    viewer, at = viewer_of(request), clock.now()
    policies.require_may_see_vtns(viewer)
    rows = list(selectors.connections())
    context = {
        "rows": [_connection_row(one) for one in rows],
        "events": _event_rows(viewer, at),
        "may_edit": policies.may_set_power(viewer),
        "may_accept": policies.may_operate(viewer),
    }
    return render(request, "dashboard/pages/openadr.html", context)


def _connection_row(one: VtnConnection) -> ConnectionRow:
    if not one.is_enabled:
        return ConnectionRow(one, "Off", "", "player-pause")
    if one.silent_since_at is not None:
        return ConnectionRow(one, "Silent", "bad", "alert-triangle")
    if one.n_failures:
        return ConnectionRow(one, "Failing", "warn", "alert-triangle")
    if one.listed_at is None:
        return ConnectionRow(one, "Not asked yet", "", "hourglass")
    return ConnectionRow(one, "Listening", "ok", "circle-check")


def _event_rows(viewer: User, at: datetime) -> list[EventRow]:
    found = list(selectors.latest_events()[:_EVENTS_SHOWN])
    ours = list(selectors.announced_by([one.pk for one in found]))
    loads = loads_of(ours, at=at)
    by_event: dict[int, list[tuple[Any, str, str]]] = {}
    for one in ours:
        phase = "opted out" if one.opted_out_at else str(phase_of_event(one, load=loads[one.pk], at=at))
        vtn_event_id = one.vtn_announcement.vtn_event_id or 0
        by_event.setdefault(vtn_event_id, []).append((one, phase, _TONES.get(phase, "")))
    may_accept = policies.may_operate(viewer)
    return [
        EventRow(
            one,
            by_event.get(one.pk, []),
            may_accept and one.is_acceptable and not one.gone_at,
        )
        for one in found
    ]


# The form -------------------------------------------------------------------------------------------------------------


@dataclass
class ProgrammeRow:
    """One line of the mapping, as typed."""

    index: int
    values: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@dataclass
class Form:
    """The form as it is shown: what was typed, never the secret."""

    values: dict[str, str]
    programmes: list[ProgrammeRow]
    errors: dict[str, list[str]] = field(default_factory=dict)

    def take(self, faults: list[dict[str, str]], used: list[ProgrammeRow]) -> None:
        """Put each fault to its field."""
        for fault in faults:
            name, _, place = fault["path"].partition("[")
            if name == "programmes" and place:
                index, _, part = place.partition("]")
                said = f"{part.lstrip('.').replace('_', ' ')} {fault['message']}".strip()
                used[int(index)].errors.append(said)
            elif name == "resources" and place:
                self.errors.setdefault(name, []).append(
                    f"Line {int(place.partition(']')[0]) + 1} {fault['message']}"
                )
            else:
                self.errors.setdefault(name, []).append(fault["message"])


@page
def new_connection(request: HttpRequest) -> HttpResponse:
    return _form(request, None)


@page
def connection(request: HttpRequest, connection_id: int) -> HttpResponse:
    return _form(request, _connection(connection_id))


def _form(request: HttpRequest, stored: VtnConnection | None) -> HttpResponse:
    viewer = viewer_of(request)
    policies.require_may_set_power(viewer)
    if request.method in ("GET", "HEAD"):
        return _page(request, stored, _form_of(stored))
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    form, given, used = _typed(request)
    is_try = request.POST.get("act") == "try"
    try:
        draft = ConnectionSpec.model_validate(given).draft()
        if is_try:
            tried = services.try_connection(draft=draft, stored=stored, actor=viewer, at=clock.now())
            return _answer(request, stored, form, tried=tried)
        reason = request.POST.get("reason", "").strip()[:500].replace("\x00", "")
        if stored is None:
            services.create_connection(draft=draft, actor=viewer, at=clock.now(), reason=reason)
        else:
            version = request.POST.get("version", "")
            is_version = version.isascii() and version.isdigit() and len(version) < 10
            services.update_connection(
                connection_id=stored.pk,
                draft=draft,
                version=int(version) if is_version else 0,
                actor=viewer,
                at=clock.now(),
                reason=reason,
            )
    except ValidationError as error:
        form.take(faults_of(error), used)
    except InvalidInput as refusal:
        form.take([dict(one) for one in refusal.errors], used)
    except (Forbidden, NotFound):
        raise
    except DomainError as refusal:
        return _answer(request, stored, form, refused=refusal.message, status=refusal.http_status)
    else:
        messages.success(request, f"{draft.name} is saved.")
        return HttpResponseRedirect(reverse("dashboard:openadr"))
    what = "Nothing was asked" if is_try else "Nothing was saved"
    return _answer(request, stored, form, refused=f"{what}: some fields are not right.", status=400)


def _form_of(stored: VtnConnection | None) -> Form:
    if stored is None:
        return Form(dict(_DEFAULTS), [ProgrammeRow(index) for index in range(_BLANK_ROWS)])
    values = {name: str(getattr(stored, name)) for name in (*_PLAIN, *_NUMBERS) if name != "domain"}
    values["domain"] = stored.domain.name
    values["is_enabled"] = "on" if stored.is_enabled else ""
    values["resources"] = "\n".join(f"{one.name} = {one.domain.name}" for one in stored.resources.all())
    rows = [
        ProgrammeRow(
            index,
            {
                "external_id": one.external_id,
                "programme": one.programme.name,
                "default_units": one.default_units,
                "test_marker": one.test_marker,
                **{name: "on" if getattr(one, name) else "" for name in _FLAGS},
            },
        )
        for index, one in enumerate(stored.programmes.all())
    ]
    rows += [ProgrammeRow(len(rows) + extra) for extra in range(_BLANK_ROWS)]
    return Form(values, rows)


def _typed(request: HttpRequest) -> tuple[Form, dict[str, Any], list[ProgrammeRow]]:
    """The form as it was sent, the values that it means, and the lines of it that say something."""

    def text(name: str, most: int = 600) -> str:
        return request.POST.get(name, "").strip()[:most]

    values = {name: text(name) for name in (*_PLAIN, *_NUMBERS)}
    values["is_enabled"] = "on" if text("is_enabled") else ""
    values["resources"] = text("resources", 30_000)
    given: dict[str, Any] = {name: values[name] for name in _PLAIN}
    given["is_enabled"] = bool(values["is_enabled"])
    for name in _NUMBERS:
        is_number = values[name].isascii() and values[name].isdigit() and len(values[name]) < 10
        given[name] = int(values[name]) if is_number else values[name]
    if secret := request.POST.get("client_secret", "")[:2000]:
        given["client_secret"] = secret
    lines = [line for line in values["resources"].splitlines() if line.strip()]
    pairs = [line.rpartition("=") for line in lines]
    given["resources"] = [{"name": name.strip(), "domain": domain.strip()} for name, _, domain in pairs]
    rows, used = [], []
    for index in range(MOST_PARTS):
        if f"programme-{index}-external_id" not in request.POST:
            break
        row = ProgrammeRow(
            index,
            {
                name: text(f"programme-{index}-{name}", 200)
                for name in ("external_id", "programme", "default_units", "test_marker", *_FLAGS)
            },
        )
        rows.append(row)
        if row.values["external_id"]:
            used.append(row)
    given["programmes"] = [
        {**row.values, **{name: bool(row.values[name]) for name in _FLAGS}} for row in used
    ]
    return Form(values, rows), given, used


def _answer(
    request: HttpRequest,
    stored: VtnConnection | None,
    form: Form,
    *,
    tried: Tried | None = None,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    """The form again, or, where a script asked what a test came to, that alone: the secret stays where it was typed."""
    if request.headers.get("HX-Request") == "true":
        faults = [f"{name.replace('_', ' ')}: {one}" for name, said in form.errors.items() for one in said]
        faults += [f"programme {row.index + 1}: {one}" for row in form.programmes for one in row.errors]
        return render(
            request,
            "dashboard/parts/openadr_tried.html",
            {"tried": tried, "refused": refused, "faults": faults},
        )
    return _page(request, stored, form, tried=tried, refused=refused, status=status)


def _page(
    request: HttpRequest,
    stored: VtnConnection | None,
    form: Form,
    *,
    tried: Tried | None = None,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    context = {
        "stored": stored,
        "form": form,
        "tried": tried,
        "refused": refused,
        "faults": [],
        "domains": list(
            power_domains().exclude(kind="cooling").order_by("name").values_list("name", flat=True)
        ),
        "programmes": list(programmes().order_by("name").values_list("name", flat=True)),
        "protocols": ["3.1.0", "3.0.1"],
        "units": [("KW", "kW"), ("W", "W"), ("MW", "MW"), ("", "refuse")],
    }
    return render(request, "dashboard/pages/openadr_connection.html", context, status=status)


# Acts -----------------------------------------------------------------------------------------------------------------


@page
@require_POST
def switch(request: HttpRequest, connection_id: int) -> HttpResponse:
    viewer, is_enabled = viewer_of(request), request.POST.get("is_enabled") == "on"
    done = (
        "It is asked at once."
        if is_enabled
        else "It is not asked any more. What it announced stays until its end."
    )
    return act(
        request,
        reverse("dashboard:openadr"),
        done,
        lambda: services.set_enabled(
            connection_id=_connection(connection_id).pk, is_enabled=is_enabled, actor=viewer, at=clock.now()
        ),
    )


@page
@require_POST
def delete(request: HttpRequest, connection_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    return act(
        request,
        reverse("dashboard:openadr"),
        "The connection is forgotten.",
        lambda: services.delete_connection(
            connection_id=_connection(connection_id).pk, actor=viewer, at=clock.now()
        ),
    )


@page
@require_POST
def accept(request: HttpRequest, connection_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    return act(
        request,
        reverse("dashboard:openadr"),
        "It is announced with the next listing.",
        lambda: services.accept_event(
            connection_id=_connection(connection_id).pk,
            external_id=request.POST.get("external_id", "")[:200],
            actor=viewer,
            at=clock.now(),
        ),
    )


def _connection(connection_id: int) -> VtnConnection:
    # A number that no column can hold names nothing.
    found = selectors.connections().filter(pk=connection_id).first() if connection_id < 2**63 else None
    if found is None:
        raise NotFound("There is no such connection.")
    return found
