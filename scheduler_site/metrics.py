"""Facility figures for Prometheus: sums only, nothing about anybody's work, read from the database when asked for."""

from collections.abc import Iterator

from django.db.models import Count
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apps.core import clock, presence
from apps.inventory import selectors as inventory
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.scheduling import selectors as scheduling


class FacilityCollector(Collector):
    """Jobs by state, nodes and devices by health, the last pass, and which loops are alive."""

    def describe(self) -> list[Metric]:
        return []  # nothing is asked of the database before it is there

    def collect(self) -> Iterator[Metric]:
        yield from _jobs()
        yield from _health()
        yield from _use()
        yield from _last_pass()
        yield from _fragmentation()
        yield from _forecasts()
        yield from _loops()


def register(registry: CollectorRegistry) -> None:
    registry.register(FacilityCollector())


def _jobs() -> Iterator[Metric]:
    counts = dict(Job.objects.order_by().values_list("state").annotate(n=Count("id")))
    jobs = GaugeMetricFamily("switchyard_jobs", "Jobs by state.", labels=["state"])
    for state in State:
        jobs.add_metric([state.value], counts.get(state.value, 0))
    yield jobs


def _health() -> Iterator[Metric]:
    nodes = GaugeMetricFamily("switchyard_nodes", "Nodes by health.", labels=["health"])
    devices = GaugeMetricFamily(
        "switchyard_devices", "Devices by the health of their node.", labels=["health"]
    )
    for row in inventory.count_by_health():
        nodes.add_metric([row.health], row.n_nodes)
        devices.add_metric([row.health], row.n_devices)
    yield nodes
    yield devices


def _use() -> Iterator[Metric]:
    labels = ["accelerator_type", "is_simulated"]
    capacity = GaugeMetricFamily("switchyard_devices_capacity", "Devices that are built in.", labels=labels)
    claimed = GaugeMetricFamily("switchyard_devices_claimed", "Devices that attempts hold.", labels=labels)
    for row in scheduling.use_now():
        named = [row.name, str(row.is_simulated).lower()]
        capacity.add_metric(named, row.n_capacity)
        claimed.add_metric(named, row.claimed)
    yield capacity
    yield claimed


def _last_pass() -> Iterator[Metric]:
    last = scheduling.last_pass()
    if last is None:
        return
    phases = GaugeMetricFamily(
        "switchyard_last_pass_seconds", "Time of the last pass by phase.", labels=["phase"]
    )
    for phase, ms in last.phase_ms.items():
        phases.add_metric([phase], ms / 1000)
    yield phases
    yield GaugeMetricFamily("switchyard_last_pass_id", "Number of the last pass.", value=last.pk)
    yield GaugeMetricFamily("switchyard_last_pass_started_jobs", "Jobs it started.", value=last.n_started)
    yield GaugeMetricFamily(
        "switchyard_last_pass_waiting_jobs", "Jobs it left waiting.", value=last.n_waiting
    )
    yield GaugeMetricFamily(
        "switchyard_last_pass_refused", "1 if the checker refused it.", value=last.is_refused
    )


def _fragmentation() -> Iterator[Metric]:
    labels = ["accelerator_type"]
    free = GaugeMetricFamily(
        "switchyard_devices_free",
        "Devices that the last pass left free, on nodes that take work.",
        labels=labels,
    )
    of_no_use = GaugeMetricFamily(
        "switchyard_devices_free_of_no_use",
        "Of these: replica, expected to be of no use to a typical one; gang, where no typical gang fits.",
        labels=[*labels, "to"],
    )
    for row in scheduling.fragmentation_now():
        free.add_metric([row.name], row.free)
        for to, devices in (("replica", row.of_no_use), ("gang", row.of_no_use_to_gangs)):
            if devices is not None:
                of_no_use.add_metric([row.name, to], devices)
    yield free
    yield of_no_use


def _forecasts() -> Iterator[Metric]:
    found = scheduling.forecast_errors(clock.now())
    yield GaugeMetricFamily(
        "switchyard_forecast_checked_jobs",
        "Jobs that waited and started within a day, the last 10,000 at most.",
        value=0 if found is None else found.n_jobs,
    )
    if found is None:
        return
    errors = GaugeMetricFamily(
        "switchyard_forecast_error_seconds",
        "How far these started from the start that they were first told; bias: the mean, above 0 if later.",
        labels=["statistic"],
    )
    for statistic, seconds in (("median", found.median_s), ("p90", found.p90_s), ("bias", found.bias_s)):
        errors.add_metric([statistic], seconds)
    yield errors


def _loops() -> Iterator[Metric]:
    loops = GaugeMetricFamily("switchyard_loop_up", "1 for each loop that is alive.", labels=["role"])
    for role in sorted(presence.present_roles()):
        loops.add_metric([role], 1)
    yield loops
