"""Requests for more: a team asks those who divide what is above it, and they grant it or say why not.

A grant is a change of the quota like any other, by the same service and under the same rules, in one transaction with
the answer.
"""

from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from apps.core.errors import InvalidInput, NotFound
from apps.events.services import record
from apps.teams import policies, selectors, services
from apps.teams.errors import NotYourTeam, RequestIsAnswered
from apps.teams.models import QuotaRequest, RequestState, Team, User

_MOST: Final = 1_000_000


def requests_of(team: Team) -> QuerySet[QuotaRequest]:
    """What it asked for, and what the teams below it ask of it: open ones first, then the latest."""
    rows = QuotaRequest.objects.filter(Q(team=team) | Q(team__parent=team))
    open_first = Case(When(state=RequestState.OPEN, then=0), default=1)
    return rows.select_related("team__parent", "accelerator_type", "asked_by", "answered_by").order_by(
        open_first, "-id"
    )


def request_named(request_id: int) -> QuotaRequest:
    """Raises NotFound."""
    rows = QuotaRequest.objects.select_related("team__parent", "accelerator_type")
    found = rows.filter(pk=request_id).first() if request_id < 2**63 else None
    if found is None:
        raise NotFound("There is no such request.")
    return found


@transaction.atomic
def ask_for_more(
    *, team: Team, accelerator_type: str, n_devices: int, reason: str, actor: User, at: datetime
) -> QuotaRequest:
    """Ask for so many devices more than the team is entitled to. An open request for the same type is replaced.

    Raises:
        NotYourTeam: by somebody who does not lead it.
        InvalidInput
    """
    if not policies.may_lead(actor, team):
        raise NotYourTeam(f"Only leads of {team}, or of a team above it, may ask for more.")
    kinds = selectors.accelerator_type_ids()
    faults = []
    if accelerator_type not in kinds:
        faults.append(("accelerator_type", "is not an accelerator type here"))
    if isinstance(n_devices, bool) or not 0 < n_devices <= _MOST:
        faults.append(("n_devices", f"must be a whole number from 1 to {_MOST}"))
    if not (reason := reason.strip()[:500]):
        faults.append(("reason", "must not be empty: whoever decides reads it"))
    if faults:
        raise InvalidInput([{"path": path, "code": "invalid", "message": text} for path, text in faults])
    services.locked_with_parents([team.pk])
    before = QuotaRequest.objects.filter(
        team=team, accelerator_type_id=kinds[accelerator_type], state=RequestState.OPEN
    )
    before.update(state=RequestState.WITHDRAWN, answered_by=actor, answered_at=at)
    made = QuotaRequest.objects.create(
        team=team,
        accelerator_type_id=kinds[accelerator_type],
        n_devices=n_devices,
        reason=reason,
        asked_by=actor,
        asked_at=at,
    )
    _tell("asked", made, accelerator_type, actor=actor, at=at, reason=reason)
    return made


@transaction.atomic
def answer_request(
    *, request_id: int, grant: bool, actor: User, at: datetime, answer: str = ""
) -> QuotaRequest:
    """Grant it, by giving the team so many more, or refuse it. Who asked may take it back: that is no refusal.

    Raises:
        NotYourTeam, RequestIsAnswered
        MoreThanOwned: the team above has not so many left.
    """
    named = request_named(request_id)
    team = services.locked_with_parents([named.team_id])[named.team_id]
    found = QuotaRequest.objects.select_for_update().get(pk=request_id)
    may_answer = policies.may_divide(actor, team)
    if not may_answer and (grant or not policies.may_lead(actor, team)):
        raise NotYourTeam(f"Only those who divide what is above {team} may answer this.")
    if found.state != RequestState.OPEN:
        raise RequestIsAnswered(f"It is {found.get_state_display()} already.")
    kind = named.accelerator_type.name
    answer = answer.strip()[:500]
    if grant:
        services.raise_entitlement(
            team=team,
            accelerator_type=kind,
            by=found.n_devices,
            actor=actor,
            at=at,
            reason=answer or f"Asked for: {found.reason}"[:500],
        )
    state = RequestState.REFUSED if may_answer and actor.pk != found.asked_by_id else RequestState.WITHDRAWN
    found.state = RequestState.GRANTED if grant else state
    found.answered_by, found.answered_at, found.answer = actor, at, answer
    found.save(update_fields=["state", "answered_by", "answered_at", "answer"])
    _tell(found.state, found, kind, actor=actor, at=at, reason=answer)
    return found


def _tell(what: str, one: QuotaRequest, kind: str, *, actor: User, at: datetime, reason: str) -> None:
    team = Team.objects.get(pk=one.team_id)
    record(
        f"quota.request_{what}",
        subject_kind="team",
        subject_id=team.pk,
        subject_name=team.name,
        team_id=team.pk,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        data={
            "request_id": one.pk,
            "accelerator_type": kind,
            "n_devices": one.n_devices,
            "asked_by": one.asked_by_id,
        },
    )
