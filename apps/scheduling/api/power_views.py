"""Loads of power domains and what jobs draw, by REST. Everyone signed in may see them."""

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import Out, page_schema
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import InvalidInput
from apps.inventory.models import POWER_KINDS, Domain
from apps.jobs.errors import NoSuchJob
from apps.jobs.selectors import jobs_visible_to
from apps.power.response_selectors import event_limits_w
from apps.scheduling import measured_power, power_board
from apps.scheduling.measured_power import TypePower
from apps.scheduling.power_board import Branch
from apps.teams.policies import person


class LoadOut(Out):
    """What a domain draws now, in watts of IT load: `load_w` is never below it while meters that speak are right.

    `known_by`: meter, below (the meters below, added up), siblings (the meter above less the ones beside it),
    reserved (no meter is expected: what was admitted, at its peak), caps (silent; acknowledged caps), uncapped
    (silent, and nothing says that a cap holds). `over_w` must go from jobs that can be seen.
    """

    name: str
    kind: str
    parent: str | None
    load_w: float
    quality: str
    known_by: str
    limit_w: float | None
    event_limit_w: float | None
    over_w: float
    estimated_w: float | None
    measured_w: float | None
    reserved_w: float
    age_s: float | None
    n_meters: int
    n_silent: int
    hold_starts: bool

    @classmethod
    def of(cls, branch: Branch, parent: str | None) -> "LoadOut":
        bound = branch.bound
        return cls(
            name=branch.row.name,
            kind=branch.row.kind,
            parent=parent,
            load_w=bound.load_w,
            quality=bound.quality,
            known_by=bound.how,
            limit_w=branch.limit_w,
            event_limit_w=branch.event_limit_w,
            over_w=bound.over_w,
            estimated_w=branch.estimated_w,
            measured_w=branch.measured_w,
            reserved_w=branch.reserved_w,
            age_s=branch.age_s,
            n_meters=bound.n_meters,
            n_silent=bound.n_silent,
            hold_starts=branch.is_held,
        )


class TypePowerOut(Out):
    """Watts of one device. `source`: measured, declared, or tdp_derived."""

    accelerator_type: str
    mean_w: float
    peak_w: float
    source: str
    n_looks: int
    n_looks_of_class: int

    @classmethod
    def of(cls, one: TypePower) -> "TypePowerOut":
        return cls(
            accelerator_type=one.accelerator_type,
            mean_w=one.power.mean_w,
            peak_w=one.power.peak_w,
            source=one.power.source,
            n_looks=one.n_looks,
            n_looks_of_class=one.n_looks_of_class,
        )


class JobPowerOut(Out):
    job_id: int
    types: list[TypePowerOut]


class LoadsView(APIView):
    @extend_schema(
        summary="What power domains draw now, and how far that is known",
        parameters=[OpenApiParameter("kind", str, enum=[str(kind) for kind in POWER_KINDS])],
        responses=page_schema(LoadOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "kind")
        kinds: Sequence[str] = POWER_KINDS
        if (kind := request.query_params.get("kind")) is not None:
            if kind not in POWER_KINDS:
                raise InvalidInput.of("kind", f"must be one of {', '.join(POWER_KINDS)}", "not_a_choice")
            kinds = (kind,)
        domains = Domain.objects.filter(kind__in=kinds).select_related("parent")
        return Response(page(domains, request, order=["name"], render_all=_rendered))


class JobPowerView(APIView):
    @extend_schema(
        summary="What a device draws under a job, and by whose word",
        description="By accelerator type that the job accepts: what its own devices, or those of jobs of the same"
        " name and person, were measured to draw; else as declared; else by the type.",
        responses=JobPowerOut,
    )
    def get(self, request: Request, job_id: int) -> Response:
        refuse_unknown_parameters(request)
        job = jobs_visible_to(person(request)).filter(pk=job_id).first() if job_id < 2**63 else None
        if job is None:
            raise NoSuchJob(job_id=job_id)
        types = [TypePowerOut.of(one) for one in measured_power.powers_of(job)]
        return Response(JobPowerOut(job_id=job.pk, types=types).model_dump())


def _rendered(domains: Sequence[Domain]) -> list[dict[str, Any]]:
    at = clock.now()
    # The whole tree: what one domain draws may follow from meters above and beside it.
    tree = power_board.power_tree(at, event_limits_w=event_limits_w(at))
    return [
        LoadOut.of(tree.by_id[domain.pk], None if domain.parent is None else domain.parent.name).model_dump()
        for domain in domains
        if domain.pk in tree.by_id
    ]
