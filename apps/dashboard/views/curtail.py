"""Plan curtailment: a wish on the left, what it would do on the right, and nothing done before the second click."""

from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core import clock
from apps.core.api.idempotency import done_once
from apps.core.errors import DomainError, Forbidden, NotFound
from apps.dashboard.plans import Shown
from apps.dashboard.templatetags import formats
from apps.dashboard.views.common import is_dialog, page, viewer_of
from apps.dashboard.wishes import KINDS, WishForm, context_of
from apps.inventory.models import POWER_KINDS, Domain, DomainKind
from apps.power import draft_services, response_selectors
from apps.power import selectors as power
from apps.power.errors import ConfirmationNeeded, NoReference, PlanStale, TargetBelowFloor
from apps.power.models import DemandResponseEvent, PlanState
from apps.power.response import OVER
from apps.scheduling.response import selectors, services
from apps.teams import policies, throttles
from apps.teams import selectors as teams
from apps.teams.models import User

_MOST_RACKS: Final = 200
_MOST_TEAMS: Final = 100


@page
def curtail(request: HttpRequest) -> HttpResponse:
    """The form for an event that nobody has announced yet; committing announces it."""
    viewer = _operator(request)
    if request.method in ("GET", "HEAD"):
        domains = _domains()
        if (number := request.GET.get("draft", "")) and number.isascii() and number.isdigit():
            form = WishForm.of_draft(draft_services.draft_of(viewer, int(number[:6])).fields)
            form.draft_number = int(number[:6])
            shown = None if form.is_empty else _preview_new(viewer, form)
            return _show(request, viewer, form, shown, domains=domains)
        return _show(request, viewer, WishForm.new(_asked_domain(request, domains)), None, domains=domains)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    form = WishForm.of_post(request)
    if request.POST.get("action") == "commit":
        return _commit_new(request, viewer, form)
    if request.POST.get("action") == "draft":
        return _save_draft(request, viewer, form)
    if request.POST.get("action") == "forget":
        return _forget_draft(request, viewer, form)
    return _show(request, viewer, form, _preview_new(viewer, form), status=400 if form.is_faulty else 200)


@page
@require_POST
def preview_part(request: HttpRequest) -> HttpResponse:
    """The right side alone, worked out again for what is in the form now; nothing is written."""
    viewer = _operator(request)
    form = WishForm.of_post(request)
    shown = None if form.is_empty else _preview_new(viewer, form)
    return render(request, "dashboard/parts/curtail_preview.html", _context(form, shown, is_part=True))


@page
def plan(request: HttpRequest, event_id: int) -> HttpResponse:
    """The same panel for an event that is announced: how it is met is what is chosen here."""
    viewer = _operator(request)
    event = response_selectors.event_by_id(event_id)
    if request.method in ("GET", "HEAD"):
        form = WishForm.new(event.domain.name)
        return _show(request, viewer, form, _preview_of(viewer, form, event), event=event)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    form = WishForm.of_post(request)
    if request.POST.get("action") == "commit":
        return _commit_of(request, viewer, form, event)
    shown = _preview_of(viewer, form, event)
    return _show(request, viewer, form, shown, event=event, status=400 if form.is_faulty else 200)


@page
@require_POST
def plan_preview_part(request: HttpRequest, event_id: int) -> HttpResponse:
    viewer = _operator(request)
    event = response_selectors.event_by_id(event_id)
    form = WishForm.of_post(request)
    shown = _preview_of(viewer, form, event)
    return render(
        request, "dashboard/parts/curtail_preview.html", _context(form, shown, event=event, is_part=True)
    )


# Dry runs --------------------------------------------------------------------------------------------------------


def _preview_new(viewer: User, form: WishForm) -> Shown | None:
    at = clock.now()
    draft = form.draft(at)
    if draft is None or _is_too_often(viewer, form):
        return None
    try:
        run = services.preview_draft(
            draft=draft, wish=form.wish(), actor=viewer, at=at, is_below_floor_confirmed=form.is_low_meant
        )
    except (NotFound, Forbidden):
        raise
    except DomainError as refusal:
        _refuse(form, refusal)
        return None
    form.shown_start_at, form.shown_end_at = draft.start_at, draft.end_at
    return Shown.of_dry_run(run, page=form.page)


def _preview_of(viewer: User, form: WishForm, event: DemandResponseEvent) -> Shown | None:
    form.check_levers()
    if form.is_faulty or _is_too_often(viewer, form):
        return None
    try:
        made = services.preview(event_id=event.pk, wish=form.wish(), actor=viewer, at=clock.now())
    except (NotFound, Forbidden):
        raise
    except DomainError as refusal:
        _refuse(form, refusal)
        return None
    # What it counts from may have been frozen by this very look.
    return Shown.of_plan(made, response_selectors.event_by_id(event.pk), page=form.page)


def _is_too_often(viewer: User, form: WishForm) -> bool:
    if wait_s := throttles.take_preview(viewer.pk, clock.now()):
        form.others.append(f"That were many previews; the next is made in {throttles.in_words(wait_s)}.")
    return bool(wait_s)


def _refuse(form: WishForm, refusal: DomainError) -> None:
    if isinstance(refusal, TargetBelowFloor):
        left_w, floor_w = refusal.facts["limit_w"], refusal.facts["floor_w"]
        form.fault(
            "value",
            f"would leave {formats.power(left_w)} of IT load, but with all work paused {form.values['domain'] or 'it'}"
            f" still draws {formats.power(floor_w)}. Ask for less; if it is meant, tick it under More.",
        )
    elif isinstance(refusal, NoReference):
        form.fault("kind", f"{refusal.message} Ask for a limit instead.")
    else:
        form.refuse(refusal)


# Drafts ----------------------------------------------------------------------------------------------------------


def _save_draft(request: HttpRequest, viewer: User, form: WishForm) -> HttpResponse:
    try:
        kept = draft_services.save_draft(
            actor=viewer, name=form.name, fields=form.as_draft(), at=clock.now(), number=form.draft_number
        )
    except draft_services.TooManyDrafts as refusal:
        form.refuse(refusal)
        return _show(request, viewer, form, None, status=refusal.http_status)
    messages.success(request, "The draft is kept. Nothing was announced.")
    return HttpResponseRedirect(f"{reverse('dashboard:curtail')}?draft={kept.number}")


def _forget_draft(request: HttpRequest, viewer: User, form: WishForm) -> HttpResponse:
    draft_services.delete_draft(actor=viewer, number=form.draft_number or 0, at=clock.now())
    messages.success(request, "The draft is deleted.")
    return HttpResponseRedirect(reverse("dashboard:curtail"))


# Commits ---------------------------------------------------------------------------------------------------------


def _commit_new(request: HttpRequest, viewer: User, form: WishForm) -> HttpResponse:
    at, seen = clock.now(), request.POST.get("token", "")[:2000]
    draft = form.draft(at, as_shown=True)
    _require_reason(form)
    if draft is None or form.is_faulty:
        form.shown_start_at = None
        return _show(request, viewer, form, _preview_new(viewer, form), status=400)

    def act() -> int:
        made = services.commit_draft(
            draft=draft,
            wish=form.wish(),
            seen=seen,
            actor=viewer,
            at=at,
            is_below_floor_confirmed=form.is_low_meant,
            confirmation=form.values["confirmation"],
            reason=form.values["reason"],
        )
        if form.draft_number is not None:
            draft_services.delete_draft(actor=viewer, number=form.draft_number, at=at)
        return made.event_id

    try:
        # The same preview committed twice is one event: a second click finds the first one's.
        event_id, is_new = done_once(user=viewer, key=f"curtail {seen}", act=act)
    except (NotFound, Forbidden):
        raise
    except DomainError as refusal:
        return _show_again(request, viewer, form, refusal, lambda: _preview_new(viewer, form))
    if is_new:
        messages.success(request, "The plan is committed.")
    return HttpResponseRedirect(reverse("dashboard:power-event", args=[event_id]))


def _commit_of(
    request: HttpRequest, viewer: User, form: WishForm, event: DemandResponseEvent
) -> HttpResponse:
    _require_reason(form)
    if form.is_faulty:
        return _show(request, viewer, form, _preview_of(viewer, form, event), event=event, status=400)
    if not services.is_preview_for(request.POST.get("token", "")[:64], event_id=event.pk, wish=form.wish()):
        refusal: DomainError = PlanStale("The form was changed since.")
        return _show_again(
            request, viewer, form, refusal, lambda: _preview_of(viewer, form, event), event=event
        )
    try:
        made = services.commit(
            event_id=event.pk,
            inputs_hash=request.POST.get("token", "")[:64],
            actor=viewer,
            at=clock.now(),
            confirmation=form.values["confirmation"],
            reason=form.values["reason"],
        )
    except (NotFound, Forbidden):
        raise
    except DomainError as refused:
        return _show_again(
            request, viewer, form, refused, lambda: _preview_of(viewer, form, event), event=event
        )
    if made.state == PlanState.COMMITTED:
        messages.success(request, "The plan is committed.")
    else:
        messages.success(request, "You approved the plan. Somebody else has to commit it before it expires.")
    return HttpResponseRedirect(reverse("dashboard:power-event", args=[event.pk]))


def _require_reason(form: WishForm) -> None:
    if not form.values["reason"]:
        form.fault("reason", "Say why: it goes to the audit trail.")


def _show_again(
    request: HttpRequest,
    viewer: User,
    form: WishForm,
    refusal: DomainError,
    preview: Any,
    event: DemandResponseEvent | None = None,
) -> HttpResponse:
    """The page after a commit that was refused, with what would be done now."""
    form.shown_start_at = form.shown_end_at = None
    note = ""
    if isinstance(refusal, PlanStale):
        note = refusal.message.removesuffix(" Preview it again.")
    shown = preview()
    if isinstance(refusal, ConfirmationNeeded):
        form.errors["confirmation"] = [f"Type {refusal.facts['expected']} to confirm."]
    elif not note and not form.is_faulty:
        _refuse(form, refusal)
    return _show(request, viewer, form, shown, event=event, status=refusal.http_status, stale_note=note)


# What is shown ---------------------------------------------------------------------------------------------------


def _operator(request: HttpRequest) -> User:
    viewer = viewer_of(request)
    if not policies.may_operate(viewer):
        raise PermissionDenied("Only operators plan curtailments.")
    return viewer


def _context(
    form: WishForm,
    shown: Shown | None,
    *,
    event: DemandResponseEvent | None = None,
    is_part: bool = False,
    stale_note: str = "",
) -> dict[str, Any]:
    return {
        **context_of(form, is_announced=event is not None),
        "shown": shown,
        "event": event,
        "is_part": is_part,
        "stale_note": stale_note,
        "can_commit": shown is not None and not (form.is_faulty and is_part),
        "part_url": (
            reverse("dashboard:curtail-preview")
            if event is None
            else reverse("dashboard:power-event-plan-preview", args=[event.pk])
        ),
    }


def _show(
    request: HttpRequest,
    viewer: User,
    form: WishForm,
    shown: Shown | None,
    *,
    event: DemandResponseEvent | None = None,
    domains: list[Domain] | None = None,
    status: int = 200,
    stale_note: str = "",
) -> HttpResponse:
    context = _context(form, shown, event=event, stale_note=stale_note)
    if event is None:
        context["domains"] = _domains() if domains is None else domains
        context["programmes"] = [one for one in response_selectors.programmes() if one.target_kind in KINDS]
        context["form_url"] = reverse("dashboard:curtail")
        context["drafts"] = [
            one for one in draft_services.drafts_of(viewer) if one.number != form.draft_number
        ]
    else:
        context["form_url"] = reverse("dashboard:power-event-plan", args=[event.pk])
        standing = selectors.standing_of(event, at=clock.now())
        context["standing"], context["is_over"] = standing, standing.phase in OVER
    context["teams"] = list(teams.teams_visible_to(viewer).order_by("name")[:_MOST_TEAMS])
    template = "dashboard/parts/curtail_dialog.html" if is_dialog(request) else "dashboard/pages/curtail.html"
    return render(request, template, context, status=status)


def _domains() -> list[Domain]:
    """Where a target may be set, the widest first; of very many racks none, their rows stand for them."""
    found = [one for one in power.power_domains() if one.kind in POWER_KINDS]
    if sum(one.kind == DomainKind.RACK for one in found) > _MOST_RACKS:
        found = [one for one in found if one.kind != DomainKind.RACK]
    return sorted(found, key=lambda one: (_RANK.get(one.kind, 9), one.name))


_RANK: Final[dict[str, int]] = {
    DomainKind.FACILITY: 0,
    DomainKind.HALL: 1,
    DomainKind.ROW: 2,
    DomainKind.RACK: 3,
}


def _asked_domain(request: HttpRequest, domains: list[Domain]) -> str:
    asked = request.GET.get("domain", "")
    if asked.isascii() and asked.isdigit() and len(asked) <= 18:
        named = next((one.name for one in domains if one.pk == int(asked)), None)
        if named is not None:
            return named
    return domains[0].name if domains else ""
