"""What goes in and comes out: people, teams, quotas, tokens."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import AddressName, CountOrZero, Instant, Name, Number, Reason, Strict, Text, Version
from apps.teams.models import Membership, QuotaLoan, QuotaRequest, Team, Token, User
from apps.teams.selectors import Owned

Weight = Annotated[Number, Field(gt=0, lt=1e9)]
Ceiling = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
Scope = Literal["read", "write", "health"]
Role = Literal["member", "lead"]


class TeamIn(Strict):
    name: AddressName
    parent: Name | None = None
    weight: Weight = 1.0
    priority_ceiling: Annotated[
        Ceiling | None, Field(description="Absent: 100, or the parent's where that is lower.")
    ] = None
    reason: Reason = ""

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"parent"})


class TeamPatch(Strict):
    """Fields that are absent stay as they are; `parent` null makes it a top team."""

    version: Version
    name: AddressName | None = None
    parent: Name | None = None
    weight: Weight | None = None
    priority_ceiling: Ceiling | None = None
    reason: Reason = ""

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"parent"})


class TeamOut(Out):
    name: str
    parent: str | None
    weight: float
    priority_ceiling: int
    version: int

    @classmethod
    def of(cls, team: Team) -> "TeamOut":
        return cls(
            name=team.name,
            parent=None if team.parent is None else team.parent.name,
            weight=team.weight,
            priority_ceiling=team.priority_ceiling,
            version=team.version,
        )


class QuotaEntryIn(Strict):
    """Devices; a limit of null is no limit."""

    accelerator_type: Name
    entitlement: CountOrZero = 0
    borrow_limit: CountOrZero | None = None
    lend_limit: CountOrZero | None = None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"borrow_limit", "lend_limit"})


class QuotaIn(Strict):
    """All that the team owns from now on, based on the version that was read."""

    version: Version
    entries: Annotated[list[QuotaEntryIn], Field(max_length=1000)]
    reason: Reason = ""


class QuotaEntryOut(Out):
    accelerator_type: str
    entitlement: int
    borrow_limit: int | None
    lend_limit: int | None
    given_to_sub_teams: int
    kept_back: int

    @classmethod
    def of(cls, owned: Owned) -> "QuotaEntryOut":
        return cls(
            accelerator_type=owned.accelerator_type,
            entitlement=owned.entitlement,
            borrow_limit=owned.borrow_limit,
            lend_limit=owned.lend_limit,
            given_to_sub_teams=owned.given_to_sub_teams,
            kept_back=owned.kept_back,
        )


class QuotaOut(Out):
    """`kept_back` is what no sub-team is entitled to."""

    team: str
    version: int
    entries: list[QuotaEntryOut]


LimitedUse = Literal["devices", "running_jobs", "waiting_jobs"]


class MemberLimitIn(Strict):
    """How much one member may have at once. What names a member stands, for that member, in place of what names none;
    there `most` may be null: no limit."""

    what: LimitedUse
    accelerator_type: Annotated[Name | None, Field(description="Of devices, and of nothing else.")] = None
    member: Annotated[Name | None, Field(description="A username; absent or null: every other member.")] = (
        None
    )
    most: CountOrZero | None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"accelerator_type", "member", "most"})


class MemberLimitsIn(Strict):
    """All limits of the team's members from now on, based on the version that was read."""

    version: Version
    entries: Annotated[list[MemberLimitIn], Field(max_length=10_000)]
    reason: Reason = ""


class MemberLimitOut(Out):
    what: LimitedUse
    accelerator_type: str | None
    member: str | None
    most: int | None


class MemberLimitsOut(Out):
    """The jobs of the team itself count; sub-teams have limits of their own. `version` is the team's."""

    team: str
    version: int
    entries: list[MemberLimitOut]


class MemberIn(Strict):
    role: Role
    reason: Reason = ""


class MemberOut(Out):
    username: str
    full_name: str
    role: Role

    @classmethod
    def of(cls, membership: Membership) -> "MemberOut":
        user = membership.user
        role: Role = "lead" if membership.role == "lead" else "member"
        return cls(username=user.get_username(), full_name=user.get_full_name(), role=role)


class TokenIn(Strict):
    name: Name
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)] = Field(
        ["read", "write"],
        description="`health` is for agents: it reports the health of nodes, and opens nothing else.",
    )
    expires_at: Instant | None = None


class TokenOut(Out):
    id: int
    name: str
    hint: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None

    @classmethod
    def of(cls, token: Token) -> "TokenOut":
        return cls(
            id=token.pk,
            name=token.name,
            hint=token.hint,
            scopes=token.scopes,
            created_at=token.created_at,
            expires_at=token.expires_at,
            last_used_at=token.last_used_at,
        )


class NewTokenOut(TokenOut):
    """`secret` is shown this once."""

    secret: str


FacilityRole = Literal["", "auditor", "operator", "power_admin", "admin"]


class UserIn(Strict):
    """Without `password` it is a service account: it signs in by token alone."""

    username: AddressName
    full_name: Annotated[Text, Field(max_length=150)] = ""
    email: Annotated[Text, Field(max_length=254)] = ""
    password: Annotated[Text, Field(min_length=1, max_length=1000)] | None = None
    facility_role: FacilityRole = ""


class UserPatch(Strict):
    facility_role: FacilityRole | None = None
    is_active: bool | None = None
    reason: Reason = ""


class UserOut(Out):
    username: str
    full_name: str
    email: str
    facility_role: str
    is_active: bool
    last_signed_in_at: datetime | None

    @classmethod
    def of(cls, user: User) -> "UserOut":
        return cls(
            username=user.get_username(),
            full_name=user.get_full_name(),
            email=user.email,
            facility_role=user.facility_role,
            is_active=user.is_active,
            last_signed_in_at=user.last_login,
        )


class MyTeamOut(Out):
    name: str
    role: Role


class MeOut(Out):
    username: str
    full_name: str
    email: str
    facility_role: str
    teams: list[MyTeamOut]
    may_operate: bool
    may_set_power: bool
    is_admin: bool


def me_out(user: User, memberships: list[Membership], *, may_operate: bool, may_set_power: bool) -> MeOut:
    return MeOut(
        username=user.get_username(),
        full_name=user.get_full_name(),
        email=user.email,
        facility_role=user.facility_role,
        teams=[
            MyTeamOut(name=membership.team.name, role="lead" if membership.role == "lead" else "member")
            for membership in memberships
        ],
        may_operate=may_operate,
        may_set_power=may_set_power,
        is_admin=user.is_administrator,
    )


# Requests for more ------------------------------------------------------------------------------------------------


class QuotaRequestIn(Strict):
    """So many devices more than the team is entitled to now; an open request for the same type is replaced."""

    accelerator_type: Name
    n_devices: Annotated[int, Field(ge=1, le=1_000_000)]
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


class QuotaRequestAnswerIn(Strict):
    grant: bool
    answer: Reason = ""


class QuotaRequestOut(Out):
    id: int
    team: str
    accelerator_type: str
    n_devices: int
    reason: str
    state: str
    asked_at: datetime
    answered_at: datetime | None
    answer: str

    @classmethod
    def of(cls, row: QuotaRequest) -> "QuotaRequestOut":
        return cls(
            id=row.pk,
            team=row.team.name,
            accelerator_type=row.accelerator_type.name,
            n_devices=row.n_devices,
            reason=row.reason,
            state=row.state,
            asked_at=row.asked_at,
            answered_at=row.answered_at,
            answer=row.answer,
        )


# Loans -------------------------------------------------------------------------------------------------------------


class LoanIn(Strict):
    """Devices that one team lets another count as its own. Who leads the lender offers, who leads the borrower asks."""

    lender: Name
    borrower: Name
    accelerator_type: Name
    n_devices: Annotated[int, Field(ge=1, le=1_000_000)]
    start_at: Annotated[Instant | None, Field(description="Absent: at once.")] = None
    end_at: Instant
    notice_s: Annotated[
        Number,
        Field(
            ge=0, le=366 * 86_400, description="How long before the end the lender says that it recalls it."
        ),
    ] = 0.0
    reason: Reason = ""


class LoanAnswerIn(Strict):
    accept: bool


class LoanEndIn(Strict):
    reason: Reason = ""
    gives_back: bool | None = Field(
        None,
        description="For which side: the borrower gives back, the lender recalls. Not said: for the one that you "
        "lead, and for the lender if you lead both.",
    )


class LoanOut(Out):
    id: int
    lender: str
    borrower: str
    accelerator_type: str
    n_devices: int
    start_at: datetime
    end_at: datetime
    notice_s: float
    state: str
    is_asked: bool
    reason: str

    @classmethod
    def of(cls, loan: QuotaLoan) -> "LoanOut":
        return cls(
            id=loan.pk,
            lender=loan.lender.name,
            borrower=loan.borrower.name,
            accelerator_type=loan.accelerator_type.name,
            n_devices=loan.n_devices,
            start_at=loan.start_at,
            end_at=loan.end_at,
            notice_s=loan.notice_s,
            state=loan.state,
            is_asked=loan.is_asked,
            reason=loan.reason,
        )
