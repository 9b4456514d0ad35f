"""The case of a demand-response event in a full facility: from the picture of what runs to every order given."""

from collections.abc import Callable
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from django.db import connection

from apps.core import clock
from apps.inventory.models import Domain
from apps.power import plan_services
from apps.power.models import CurtailmentPlan, PowerReading
from apps.power.response_services import EventDraft, announce_event
from apps.scheduling.bench import work
from apps.scheduling.bench.planning import BACKLOG, Bench, Size, build_backlog, run_passes
from apps.scheduling.response import control, services
from apps.scheduling.response.deciding import Wish
from apps.scheduling.response.site import read_site
from apps.teams.models import FacilityRole, User

_SHED_SHARE: Final = 0.25
_CALM_LOOKS: Final = 5


def power(bench: Bench, size: Size, at: datetime) -> str:
    """A full facility of all tiers; a quarter of what one domain draws is asked for, without notice."""
    url = bench.build(Size(size.nodes, 2 * size.nodes + BACKLOG), build_backlog, at)
    run_passes(at)
    work.start(work.some_open(10**6, state="pending"), at)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobs_job SET spec = jsonb_set(spec, '{flexibility}', to_jsonb(id % 5))")
    at += timedelta(seconds=60)
    took: dict[str, float] = {}

    def timed(name: str, act: Callable[[], object]) -> None:
        began_s = clock.monotonic_s()
        act()
        took[name] = clock.monotonic_s() - began_s

    site = read_site(at)
    timed("picture", lambda: read_site(at))
    tops = [
        d for d in Domain.objects.filter(kind__in=["facility", "hall"]).order_by("pk") if d.pk in site.domains
    ]
    top = next((domain for domain in tops if domain.kind == "facility"), tops[0])
    drawn_w = site.modelled_w()[top.pk]
    meter = site.domains[top.pk].meter
    meter_w = meter.fixed_w + meter.k * drawn_w
    for minute in range(1, 4):
        PowerReading.objects.create(
            domain=top, at=at - timedelta(minutes=minute), draw_w=meter_w, source="metered"
        )
    draft = EventDraft(
        domain=top.name,
        target_kind="shed_by",
        value=_SHED_SHARE * drawn_w * meter.k,
        start_at=at,
        end_at=at + timedelta(hours=3),
    )
    event = announce_event(draft=draft, actor=None, at=at, is_below_floor_confirmed=True)
    plans: list[CurtailmentPlan] = []
    timed(
        "preview",
        lambda: plans.append(services.preview(event_id=event.pk, wish=Wish(), actor=None, at=at)),
    )
    (plan,) = plans
    operator = User.objects.create(username="bench-operator", facility_role=FacilityRole.OPERATOR)
    timed(
        "commit",
        lambda: services.commit(
            event_id=event.pk,
            inputs_hash=plan.inputs_hash,
            actor=operator,
            at=at,
            confirmation=plan_services.confirmation_of(event),
        ),
    )
    timed("look that gives every order", lambda: control.look(at=at, who="bench"))
    calm = []
    for n in range(_CALM_LOOKS):
        began_s = clock.monotonic_s()
        control.look(at=at + timedelta(seconds=n + 1), who="bench")
        calm.append(clock.monotonic_s() - began_s)
    running = Size(size.nodes, len(site.jobs))
    limits = {"preview": 1.0, "picture": None, "commit": None}
    for name, seconds in took.items():
        bench.add("power", running, name, seconds, "s", at_most=limits.get(name, 5.0))
    bench.add("power", running, "orders", len(plan.plan["actions"]), "orders")
    bench.add("power", running, "look when nothing moves, median", median(calm), "s", at_most=1.0)
    return url
