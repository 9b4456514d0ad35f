"""People, teams, quotas and tokens by REST."""

from dataclasses import asdict
from typing import Any

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.teams import loans, policies, requests, selectors, services
from apps.teams.api import bodies
from apps.teams.models import Team, Token, User
from apps.teams.policies import person


class MeView(APIView):
    @extend_schema(summary="Who I am, and what I may do", responses=bodies.MeOut)
    def get(self, request: Request) -> Response:
        user = person(request)
        me = bodies.me_out(
            user,
            list(selectors.memberships_of(user)),
            may_operate=policies.may_operate(user),
            may_set_power=policies.may_set_power(user),
        )
        return Response(me.model_dump())


class UsersView(APIView):
    @extend_schema(
        summary="People and service accounts",
        description="For administrators and auditors; to others people show where they act.",
        responses=page_schema(bodies.UserOut),
    )
    def get(self, request: Request) -> Response:
        policies.require_may_see_people(person(request))
        refuse_unknown_parameters(request)
        return Response(
            page(User.objects.all(), request, order=["username"], render=_rendered(bodies.UserOut))
        )

    @extend_schema(summary="Take a person in", request=bodies.UserIn, responses={201: bodies.UserOut})
    def post(self, request: Request) -> Response:
        policies.require_admin(person(request))
        body = parse_body(request, bodies.UserIn)

        def act() -> Response:
            made = services.create_user(**body.model_dump(), actor=person(request), at=clock.now())
            return Response(bodies.UserOut.of(made).model_dump(), status=201)

        return answer_once(request, act)


class UserView(APIView):
    @extend_schema(summary="One person", responses=bodies.UserOut)
    def get(self, request: Request, username: str) -> Response:
        policies.require_may_see_people(person(request))
        return Response(bodies.UserOut.of(_user(username)).model_dump())

    @extend_schema(
        summary="Change what a person may do, or shut them out",
        request=bodies.UserPatch,
        responses=bodies.UserOut,
    )
    def patch(self, request: Request, username: str) -> Response:
        actor = person(request)
        policies.require_admin(actor)
        body = parse_body(request, bodies.UserPatch)
        user = _user(username)
        at = clock.now()
        with transaction.atomic():
            if body.facility_role is not None:
                user = services.set_facility_role(
                    user_id=user.pk, facility_role=body.facility_role, actor=actor, at=at, reason=body.reason
                )
            if body.is_active is not None:
                user = services.set_active(
                    user_id=user.pk, is_active=body.is_active, actor=actor, at=at, reason=body.reason
                )
        return Response(bodies.UserOut.of(user).model_dump())


class TokensView(APIView):
    @extend_schema(summary="My tokens", responses=page_schema(bodies.TokenOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        tokens = selectors.tokens_of(person(request)).filter(revoked_at=None)
        return Response(page(tokens, request, order=["-id"], render=_rendered(bodies.TokenOut)))

    @extend_schema(
        summary="Make a token",
        description="One made by a token may do no more, and ends no later, than that one.",
        request=bodies.TokenIn,
        responses={201: bodies.NewTokenOut},
    )
    def post(self, request: Request) -> Response:
        # The answer is never kept: it holds the secret. So a key does not replay it.
        body = parse_body(request, bodies.TokenIn)
        token, secret = services.create_token(
            user=person(request),
            name=body.name,
            scopes=body.scopes,
            expires_at=body.expires_at,
            at=clock.now(),
            by=request.auth if isinstance(request.auth, Token) else None,
        )
        return Response(
            bodies.NewTokenOut(**bodies.TokenOut.of(token).model_dump(), secret=secret).model_dump(),
            status=201,
        )


class TokenView(APIView):
    @extend_schema(summary="Revoke a token", responses={204: None})
    def delete(self, request: Request, token_id: int) -> Response:
        services.revoke_token(token_id=_row_id(token_id), actor=person(request), at=clock.now())
        return Response(status=204)


class TeamsView(APIView):
    @extend_schema(
        summary="Teams",
        parameters=[OpenApiParameter("parent", str, description="Only its sub-teams.")],
        responses=page_schema(bodies.TeamOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "parent")
        teams = selectors.teams_visible_to(person(request)).select_related("parent")
        if (parent := request.query_params.get("parent")) is not None:
            teams = teams.filter(parent=_team(request, parent))
        return Response(page(teams, request, order=["name"], render=_rendered(bodies.TeamOut)))

    @extend_schema(summary="Make a team", request=bodies.TeamIn, responses={201: bodies.TeamOut})
    def post(self, request: Request) -> Response:
        body = parse_body(request, bodies.TeamIn)
        parent = None if body.parent is None else _named_in_body(request, body.parent)

        def act() -> Response:
            team = services.create_team(
                name=body.name,
                parent=parent,
                weight=body.weight,
                priority_ceiling=body.priority_ceiling,
                actor=person(request),
                at=clock.now(),
                reason=body.reason,
            )
            return Response(bodies.TeamOut.of(team).model_dump(), status=201)

        return answer_once(request, act)


class TeamView(APIView):
    @extend_schema(summary="One team", responses=bodies.TeamOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(bodies.TeamOut.of(_team(request, name)).model_dump())

    @extend_schema(summary="Change a team", request=bodies.TeamPatch, responses=bodies.TeamOut)
    def patch(self, request: Request, name: str) -> Response:
        team = _team(request, name)
        body = parse_body(request, bodies.TeamPatch)
        changes: dict[str, Any] = {
            field: getattr(body, field) for field in body.model_fields_set - {"version", "reason"}
        }
        if changes.get("parent") is not None:
            changes["parent"] = _named_in_body(request, changes["parent"])
        team = services.update_team(
            team_id=team.pk,
            changes=changes,
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(bodies.TeamOut.of(team).model_dump())

    @extend_schema(summary="Take a team away", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        services.delete_team(team_id=_team(request, name).pk, actor=person(request), at=clock.now())
        return Response(status=204)


class QuotaView(APIView):
    @extend_schema(summary="What a team owns", responses=bodies.QuotaOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_quota_out(_team(request, name)))

    @extend_schema(
        summary="Set what a team owns",
        description="Replaces the whole. 409 with both sides when somebody saved meanwhile.",
        request=bodies.QuotaIn,
        responses=bodies.QuotaOut,
    )
    def put(self, request: Request, name: str) -> Response:
        team = _team(request, name)
        body = parse_body(request, bodies.QuotaIn)
        entries = [
            services.QuotaEntry(
                accelerator_type=entry.accelerator_type,
                entitlement=entry.entitlement,
                borrow_limit=entry.borrow_limit,
                lend_limit=entry.lend_limit,
            )
            for entry in body.entries
        ]
        team = services.set_quota(
            team=team,
            entries=entries,
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(_quota_out(team))


class MemberLimitsView(APIView):
    @extend_schema(summary="How much one member of a team may have at once", responses=bodies.MemberLimitsOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_limits_out(_team(request, name)))

    @extend_schema(
        summary="Set how much one member of a team may have at once",
        description="Replaces the whole; for leads. 409 with both sides when somebody saved meanwhile.",
        request=bodies.MemberLimitsIn,
        responses=bodies.MemberLimitsOut,
    )
    def put(self, request: Request, name: str) -> Response:
        team = _team(request, name)
        policies.require_lead(person(request), team)
        body = parse_body(request, bodies.MemberLimitsIn)
        team = services.set_member_limits(
            team=team,
            entries=[services.MemberLimitEntry(**entry.model_dump()) for entry in body.entries],
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(_limits_out(team))


class TeamRequestsView(APIView):
    @extend_schema(
        summary="What a team asked for, and what the teams below ask of it",
        responses=page_schema(bodies.QuotaRequestOut),
    )
    def get(self, request: Request, name: str) -> Response:
        refuse_unknown_parameters(request)
        found = requests.requests_of(_team(request, name))
        return Response(page(found, request, order=["-id"], render=_rendered(bodies.QuotaRequestOut)))

    @extend_schema(
        summary="Ask for more devices",
        request=bodies.QuotaRequestIn,
        responses={201: bodies.QuotaRequestOut},
    )
    def post(self, request: Request, name: str) -> Response:
        body = parse_body(request, bodies.QuotaRequestIn)

        def ask() -> Response:
            made = requests.ask_for_more(
                team=_team(request, name),
                accelerator_type=body.accelerator_type,
                n_devices=body.n_devices,
                reason=body.reason,
                actor=person(request),
                at=clock.now(),
            )
            return Response(_request_out(made.pk), status=201)

        return answer_once(request, ask)


class QuotaRequestAnswerView(APIView):
    @extend_schema(
        summary="Grant a request for more, or refuse it",
        description="A grant raises the entitlement. Who asked may take it back with `grant` false.",
        request=bodies.QuotaRequestAnswerIn,
        responses=bodies.QuotaRequestOut,
    )
    def post(self, request: Request, request_id: int) -> Response:
        body = parse_body(request, bodies.QuotaRequestAnswerIn)
        requests.answer_request(
            request_id=request_id,
            grant=body.grant,
            actor=person(request),
            at=clock.now(),
            answer=body.answer,
        )
        return Response(_request_out(request_id))


def _request_out(request_id: int) -> dict[str, Any]:
    return bodies.QuotaRequestOut.of(requests.request_named(request_id)).model_dump(mode="json")


class TeamLoansView(APIView):
    @extend_schema(summary="What a team lent and borrowed", responses=page_schema(bodies.LoanOut))
    def get(self, request: Request, name: str) -> Response:
        refuse_unknown_parameters(request)
        found = loans.loans_of(_team(request, name))
        return Response(page(found, request, order=["-id"], render=_rendered(bodies.LoanOut)))


class LoansView(APIView):
    @extend_schema(
        summary="Offer devices to another team for a while, or ask for them",
        description="Agreed at once where the same person leads both teams; else the other side answers.",
        request=bodies.LoanIn,
        responses={201: bodies.LoanOut},
    )
    def post(self, request: Request) -> Response:
        body = parse_body(request, bodies.LoanIn)
        at = clock.now()

        def propose() -> Response:
            loan = loans.propose_loan(
                lender=selectors.team_named(body.lender, viewer=person(request)),
                borrower=selectors.team_named(body.borrower, viewer=person(request)),
                accelerator_type=body.accelerator_type,
                n_devices=body.n_devices,
                start_at=body.start_at or at,
                end_at=body.end_at,
                notice_s=body.notice_s,
                actor=person(request),
                at=at,
                reason=body.reason,
            )
            return Response(_loan_out(loan.pk), status=201)

        return answer_once(request, propose)


class LoanView(APIView):
    @extend_schema(summary="One loan", responses=bodies.LoanOut)
    def get(self, request: Request, loan_id: int) -> Response:
        return Response(_loan_out(loan_id))


class LoanAnswerView(APIView):
    @extend_schema(
        summary="Agree to a loan, or decline it",
        description="Who proposed it may take it back with `accept` false.",
        request=bodies.LoanAnswerIn,
        responses=bodies.LoanOut,
    )
    def post(self, request: Request, loan_id: int) -> Response:
        body = parse_body(request, bodies.LoanAnswerIn)
        loans.answer_loan(loan_id=loan_id, accept=body.accept, actor=person(request), at=clock.now())
        return Response(_loan_out(loan_id))


class LoanEndView(APIView):
    @extend_schema(
        summary="End a loan early",
        description="The borrower gives back at once; the lender recalls with the notice agreed on.",
        request=bodies.LoanEndIn,
        responses=bodies.LoanOut,
    )
    def post(self, request: Request, loan_id: int) -> Response:
        body = parse_body(request, bodies.LoanEndIn)
        loans.end_loan(
            loan_id=loan_id,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
            gives_back=body.gives_back,
        )
        return Response(_loan_out(loan_id))


def _loan_out(loan_id: int) -> dict[str, Any]:
    return bodies.LoanOut.of(loans.loan_named(loan_id)).model_dump(mode="json")


class MembersView(APIView):
    @extend_schema(summary="Who is in a team", responses=page_schema(bodies.MemberOut))
    def get(self, request: Request, name: str) -> Response:
        refuse_unknown_parameters(request)
        members = selectors.members_of(_team(request, name))
        return Response(page(members, request, order=["user__username"], render=_rendered(bodies.MemberOut)))


class MemberView(APIView):
    @extend_schema(summary="Take a person into a team", request=bodies.MemberIn, responses=bodies.MemberOut)
    def put(self, request: Request, name: str, username: str) -> Response:
        team = _team(request, name)
        policies.require_lead(person(request), team)
        body = parse_body(request, bodies.MemberIn)
        membership = services.set_member(
            team_id=team.pk,
            user=_user(username),
            role=body.role,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(bodies.MemberOut.of(membership).model_dump())

    @extend_schema(summary="Take a person out of a team", responses={204: None})
    def delete(self, request: Request, name: str, username: str) -> Response:
        team = _team(request, name)
        policies.require_lead(person(request), team)
        services.remove_member(team_id=team.pk, user=_user(username), actor=person(request), at=clock.now())
        return Response(status=204)


def _rendered(out: Any) -> Any:
    return lambda row: out.of(row).model_dump()


def _team(request: Request, name: str) -> Team:
    return selectors.team_named(name, viewer=person(request))


def _named_in_body(request: Request, name: str) -> Team:
    try:
        return _team(request, name)
    except NotFound:
        raise InvalidInput.of("parent", "is not a team", "unknown") from None


def _user(username: str) -> User:
    # People are looked up by those only who may act on a team; others can not try out names here.
    user = None if "\x00" in username else User.objects.filter(username=username).first()
    if user is None:
        raise NotFound(f"There is no person {username!r}.")
    return user


def _row_id(number: int) -> int:
    if number >= 2**63:
        raise NotFound("There is no such token.")
    return number


def _quota_out(team: Team) -> dict[str, Any]:
    entries = selectors.owned_by([team])[team.pk]
    return bodies.QuotaOut(
        team=team.name,
        version=team.version,
        entries=[bodies.QuotaEntryOut.of(owned) for owned in entries],
    ).model_dump()


def _limits_out(team: Team) -> dict[str, Any]:
    entries = [services.entry_of(limit) for limit in selectors.limits_of(team)]
    return bodies.MemberLimitsOut(
        team=team.name,
        version=team.version,
        entries=[bodies.MemberLimitOut(**asdict(entry)) for entry in entries],
    ).model_dump()
