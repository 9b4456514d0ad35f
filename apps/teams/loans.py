"""Loans: devices that one team lets another count as its own for a while.

One side proposes, the other agrees; whoever leads both agrees at once. From its start to its end an agreed loan moves
entitlement, and nothing has to happen at either instant for it to count. What is lent is what the lender has for
itself: what it gave to sub-teams is theirs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.core.errors import InvalidInput, NotFound
from apps.events.services import record
from apps.teams import policies, selectors
from apps.teams.errors import LoanIsAnswered, MoreThanKeptBack, NotYourTeam, TeamInUse
from apps.teams.models import LoanState, Quota, QuotaLoan, Team, User

LONGEST: Final = timedelta(days=366)
_MOST: Final = 1_000_000


def loans_of(team: Team) -> QuerySet[QuotaLoan]:
    """What it lent and borrowed, the latest first. Everyone signed in may know, as of quotas."""
    return QuotaLoan.objects.filter(Q(lender=team) | Q(borrower=team)).select_related(
        "lender", "borrower", "accelerator_type", "proposed_by", "answered_by"
    )


def open_and_latest(team: Team, *, at: datetime, most_over: int) -> list[QuotaLoan]:
    """All its loans that somebody may still act on, the latest first; then the latest of those that are over."""
    is_open = Q(state__in=(LoanState.PROPOSED, LoanState.AGREED), end_at__gt=at)
    rows = loans_of(team).order_by("-id")
    return [*rows.filter(is_open), *rows.exclude(is_open)[:most_over]]


def require_over(team: Team, at: datetime) -> None:
    """Refuse to go on while the team lends or borrows, or is asked to."""
    if loans_of(team).filter(state__in=(LoanState.PROPOSED, LoanState.AGREED), end_at__gt=at).exists():
        raise TeamInUse(f"Team {team.name} has loans that are not over; end or decline them first.")


def loan_named(loan_id: int) -> QuotaLoan:
    loan = (
        QuotaLoan.objects.select_related("lender", "borrower", "accelerator_type").filter(pk=loan_id).first()
    )
    if loan is None:
        raise NotFound("There is no such loan.")
    return loan


def in_force(at: datetime) -> QuerySet[QuotaLoan]:
    return QuotaLoan.objects.filter(state=LoanState.AGREED, start_at__lte=at, end_at__gt=at)


def shifts(at: datetime) -> Mapping[tuple[int, int], int]:
    """Devices by (team, accelerator type) that loans add to what a team has for itself, or (below 0) take from it."""
    moved: dict[tuple[int, int], int] = defaultdict(int)
    for lender, borrower, kind, n_devices in in_force(at).values_list(
        "lender_id", "borrower_id", "accelerator_type_id", "n_devices"
    ):
        moved[lender, kind] -= n_devices
        moved[borrower, kind] += n_devices
    return moved


def next_change_at(at: datetime) -> datetime | None:
    """When the next agreed loan begins or ends."""
    rows = QuotaLoan.objects.filter(state=LoanState.AGREED, end_at__gt=at).values_list("start_at", "end_at")
    return min((mark for row in rows for mark in row if mark > at), default=None)


# Changes ------------------------------------------------------------------------------------------------------------


@transaction.atomic
def propose_loan(
    *,
    lender: Team,
    borrower: Team,
    accelerator_type: str,
    n_devices: int,
    start_at: datetime,
    end_at: datetime,
    notice_s: float = 0.0,
    actor: User,
    at: datetime,
    reason: str = "",
) -> QuotaLoan:
    """Offer devices (by who leads the lender) or ask for them (by who leads the borrower).

    Raises:
        MoreThanKeptBack: the lender has less for itself in that time.
    """
    leads_lender, leads_borrower = policies.may_lead(actor, lender), policies.may_lead(actor, borrower)
    if not (leads_lender or leads_borrower):
        raise NotYourTeam(
            f"Only leads of {lender} or of {borrower}, or of a team above them, may propose this."
        )
    kinds = selectors.accelerator_type_ids()
    faults = []
    if accelerator_type not in kinds:
        faults.append(("accelerator_type", "is not an accelerator type here"))
    if lender.pk == borrower.pk:
        faults.append(("borrower", "must be another team"))
    if isinstance(n_devices, bool) or not 0 < n_devices <= _MOST:
        faults.append(("n_devices", f"must be a whole number from 1 to {_MOST}"))
    if end_at <= max(start_at, at):
        faults.append(("end_at", "must be after the start, and not in the past"))
    elif end_at - max(start_at, at) > LONGEST:
        faults.append(("end_at", f"must be within {LONGEST.days} days of the start"))
    if not 0 <= notice_s <= LONGEST.total_seconds():
        faults.append(("notice_s", "must be from 0 to a year"))
    if faults:
        raise InvalidInput([{"path": path, "code": "invalid", "message": text} for path, text in faults])
    _lock((lender.pk, borrower.pk))
    loan = QuotaLoan(
        lender=lender,
        borrower=borrower,
        accelerator_type_id=kinds[accelerator_type],
        n_devices=n_devices,
        start_at=max(start_at, at),
        end_at=end_at,
        notice_s=notice_s,
        is_asked=not leads_lender,
        reason=reason[:500],
        proposed_by=actor,
        proposed_at=at,
    )
    _require_kept_back(loan, accelerator_type)
    loan.save()
    _tell("proposed", loan, accelerator_type, actor=actor, at=at)
    if leads_lender and leads_borrower:
        _agree(loan, accelerator_type, actor=actor, at=at)
    return loan


@transaction.atomic
def answer_loan(*, loan_id: int, accept: bool, actor: User, at: datetime) -> QuotaLoan:
    """Agree to what the other side proposed, or decline it. Who proposed may take it back: that is a decline too."""
    loan, kind = _locked(loan_id)
    answers, proposed = (loan.lender, loan.borrower) if loan.is_asked else (loan.borrower, loan.lender)
    is_answering = policies.may_lead(actor, answers)
    if not is_answering and (accept or not policies.may_lead(actor, proposed)):
        raise NotYourTeam(f"Only leads of {answers}, or of a team above it, may answer this.")
    if loan.state != LoanState.PROPOSED:
        raise LoanIsAnswered(f"It is {loan.get_state_display()} already.")
    if accept:
        if loan.end_at <= at:
            raise LoanIsAnswered("Its time is over.")
        loan.start_at = max(loan.start_at, at)
        _require_kept_back(loan, kind)
        _agree(loan, kind, actor=actor, at=at)
        return loan
    loan.state = LoanState.DECLINED if is_answering else LoanState.WITHDRAWN
    loan.answered_by, loan.answered_at, loan.version = actor, at, loan.version + 1
    loan.save(update_fields=["state", "answered_by", "answered_at", "version"])
    _tell(loan.state, loan, kind, actor=actor, at=at)
    return loan


@transaction.atomic
def end_loan(
    *, loan_id: int, actor: User, at: datetime, reason: str = "", gives_back: bool | None = None
) -> QuotaLoan:
    """End an agreed loan early: the borrower gives back at once, the lender recalls with the notice agreed on.

    Args:
        gives_back: For which side it is ended; None: for the one that the actor leads, and the lender's if they lead
            both, so that nobody loses the notice unasked.
    """
    loan, kind = _locked(loan_id)
    if gives_back is None:
        gives_back = not policies.may_lead(actor, loan.lender)
    if not policies.may_lead(actor, loan.borrower if gives_back else loan.lender):
        side = f"{loan.borrower} may give this back" if gives_back else f"{loan.lender} may recall this"
        raise NotYourTeam(f"Only leads of {side}.")
    if loan.state != LoanState.AGREED or loan.end_at <= at:
        raise LoanIsAnswered("It is not in force any more.")
    begun_at = max(at, loan.start_at)
    end_at = begun_at if gives_back else begun_at + timedelta(seconds=loan.notice_s)
    if at < loan.start_at:
        end_at = loan.start_at  # nothing was lent yet
    if end_at >= loan.end_at:
        raise LoanIsAnswered("It ends before the notice is over.")
    before = loan.end_at
    loan.end_at, loan.version = end_at, loan.version + 1
    loan.save(update_fields=["end_at", "version"])
    _count_changes(loan)
    _tell(
        "given_back" if gives_back else "recalled",
        loan,
        kind,
        actor=actor,
        at=at,
        reason=reason[:500],
        before={"end_at": before.isoformat()},
    )
    return loan


def _agree(loan: QuotaLoan, kind: str, *, actor: User, at: datetime) -> None:
    loan.state, loan.answered_by, loan.answered_at = LoanState.AGREED, actor, at
    loan.version += 1
    loan.save(update_fields=["state", "answered_by", "answered_at", "start_at", "version"])
    _count_changes(loan)
    _tell("agreed", loan, kind, actor=actor, at=at)


def _locked(loan_id: int) -> tuple[QuotaLoan, str]:
    """The loan and the name of its type, with both teams locked: what a team has left is decided one by one."""
    found = loan_named(loan_id)
    _lock((found.lender_id, found.borrower_id))
    loan = QuotaLoan.objects.select_for_update(of=("self",)).get(pk=loan_id)
    return loan, found.accelerator_type.name


def _lock(team_ids: Iterable[int]) -> None:
    list(Team.objects.select_for_update(no_key=True).filter(pk__in=list(team_ids)).order_by("pk"))


def _require_kept_back(loan: QuotaLoan, kind: str) -> None:
    """Refuse to lend what the lender does not have for itself during the whole of it."""
    own = Quota.objects.filter(accelerator_type_id=loan.accelerator_type_id)
    free = sum(own.filter(team=loan.lender).values_list("entitlement", flat=True))
    free -= sum(own.filter(team__parent=loan.lender).values_list("entitlement", flat=True))
    others = QuotaLoan.objects.filter(
        lender=loan.lender,
        accelerator_type_id=loan.accelerator_type_id,
        state=LoanState.AGREED,
        start_at__lt=loan.end_at,
        end_at__gt=loan.start_at,
    )
    lent = _most_at_once(others.values_list("start_at", "end_at", "n_devices"))
    if loan.n_devices > free - lent:
        raise MoreThanKeptBack(
            team=loan.lender.name, accelerator_type=kind, free=max(0, free - lent), asked=loan.n_devices
        )


def lent_from(team_id: int, at: datetime) -> Mapping[str, int]:
    """By name of type, what the team has promised to others from now on, the most at once."""
    spans: dict[str, list[tuple[datetime, datetime, int]]] = defaultdict(list)
    rows = QuotaLoan.objects.filter(lender_id=team_id, state=LoanState.AGREED, end_at__gt=at)
    for kind, start_at, end_at, n_devices in rows.values_list(
        "accelerator_type__name", "start_at", "end_at", "n_devices"
    ):
        spans[kind].append((start_at, end_at, n_devices))
    return {kind: _most_at_once(of_kind) for kind, of_kind in spans.items()}


def _most_at_once(spans: Iterable[tuple[datetime, datetime, int]]) -> int:
    """Devices that are lent at once at the most; who ends at an instant makes room for who begins then."""
    marks = sorted(mark for start, end, n in spans for mark in ((start, 1, n), (end, 0, -n)))
    most = now = 0
    for _, _, n in marks:
        now += n
        most = max(most, now)
    return most


def _count_changes(loan: QuotaLoan) -> None:
    """A plan made before this is not carried out: what the teams own has changed."""
    for team in Team.objects.filter(pk__in=(loan.lender_id, loan.borrower_id)).order_by("pk"):
        team.version += 1
        team.save(update_fields=["version"])


def _tell(
    what: str,
    loan: QuotaLoan,
    kind: str,
    *,
    actor: User | None,
    at: datetime,
    reason: str = "",
    before: Mapping[str, Any] | None = None,
) -> None:
    """One entry for each of the two teams, so that both find it in their trails."""
    facts = {
        "loan_id": loan.pk,
        "lender": loan.lender.name,
        "borrower": loan.borrower.name,
        "accelerator_type": kind,
        "n_devices": loan.n_devices,
        "start_at": loan.start_at.isoformat(),
        "end_at": loan.end_at.isoformat(),
    }
    for team in (loan.lender, loan.borrower):
        record(
            f"quota.loan_{what}",
            subject_kind="team",
            subject_id=team.pk,
            subject_name=team.name,
            actor=actor,
            at=at,
            is_audit=True,
            reason=reason or loan.reason,
            before=dict(before) if before else None,
            after=facts,
        )
