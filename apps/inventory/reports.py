"""Health as probes and agents report it: kept, judged by the rules, and brought to bear on the nodes.

A report may come twice or late: one that is not newer than what its source said last is dropped. What is decided is
decided under the node's lock, from all that is kept.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F, Q

from apps.core.errors import InvalidInput
from apps.inventory import health, nodes
from apps.inventory.models import Health, HealthBy, HealthReport, Node, NodeFailure, PaceReading
from apps.teams import policies
from apps.teams.models import User

_AT_ONCE: Final = 500
PROBE: Final = "probe"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    value: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a source says of one node at one time."""

    node_id: int
    at: datetime
    status: str = "ok"
    checks: tuple[Check, ...] = ()

    @property
    def failing(self) -> list[str]:
        return sorted({check.name for check in self.checks if not check.ok})


def take_report(*, report: Report, source: str, actor: User | None, at: datetime) -> Node:
    """Keep one report, and judge its node by it. Raises InvalidInput for one out of the future."""
    if actor is not None:
        policies.require_may_operate(actor)
    if report.at > at + health.FROM_THE_FUTURE:
        raise InvalidInput.of("at", "must not lie in the future", "out_of_range")
    take_reports(reports=[report], source=source, actor=actor, at=at)
    return Node.objects.get(pk=report.node_id)


def take_reports(*, reports: Sequence[Report], source: str, actor: User | None, at: datetime) -> list[int]:
    """Keep what one source says of many nodes, and judge those that it matters to.

    Returns:
        Ids of the nodes whose health changed.
    """
    if actor is not None:
        policies.require_may_operate(actor)
    # In id order and some at a time: starts wait for the locks on nodes.
    ordered = sorted(reports, key=lambda one: (one.node_id, one.at))
    changed: list[int] = []
    for first in range(0, len(ordered), _AT_ONCE):
        changed += _take_some(ordered[first : first + _AT_ONCE], source, actor, at)
    return changed


@transaction.atomic
def _take_some(reports: Sequence[Report], source: str, actor: User | None, at: datetime) -> list[int]:
    by_node: dict[int, list[Report]] = defaultdict(list)
    for report in reports:
        by_node[report.node_id].append(report)
    found = {node.pk: node for node in Node.objects.filter(pk__in=by_node)}
    verdicts = _keep({id_: by_node[id_] for id_ in found}, found, source)
    to_judge = [
        id_
        for id_, verdict in verdicts.items()
        if verdict != Health.HEALTHY or found[id_].health_by == HealthBy.REPORTS
    ]
    locked = nodes.locked_many(to_judge)
    said = _said(locked)
    return [node.pk for node in locked.values() if _judge(node, said[node.pk], actor, at)]


def _keep(by_node: Mapping[int, Sequence[Report]], found: Mapping[int, Node], source: str) -> dict[int, str]:
    """Store what is new; return the verdicts of those nodes of which something was."""
    last = {
        row.node_id: row
        for row in HealthReport.objects.filter(node__in=by_node, source=source)
        .order_by("node_id", "-at", "-id")
        .distinct("node_id")
    }
    verdicts: dict[int, str] = {}
    again: dict[int, HealthReport] = {}
    fresh: list[HealthReport] = []
    for node_id, reports in by_node.items():
        for report in reports:
            row = last.get(node_id)
            if row is not None and report.at <= row.at:
                continue
            if row is not None and _is_the_same(row, report, found[node_id]):
                row.at, row.n_reports = report.at, row.n_reports + 1
                row.checks = _as_json(report.checks)
                if row.pk is not None:
                    again[row.pk] = row
            else:
                row = last[node_id] = _row(report, source)
                fresh.append(row)
            verdicts[node_id] = row.verdict
    _count_again(list(again.values()))
    if fresh:
        HealthReport.objects.bulk_create(fresh)
        _forget_old({row.node_id for row in fresh})
    return verdicts


def _count_again(rows: Sequence[HealthReport]) -> None:
    # Not bulk_update(), which writes a case a row and column: a minute's probes of a large hall would take as long.
    if not rows:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE inventory_healthreport report"
            " SET at = new.at, n_reports = new.n_reports, checks = new.checks::jsonb"
            " FROM unnest(%s::bigint[], %s::timestamptz[], %s::int[], %s::text[]) AS new(id, at, n_reports, checks)"
            " WHERE report.id = new.id",
            [
                [row.pk for row in rows],
                [row.at for row in rows],
                [row.n_reports for row in rows],
                [json.dumps(row.checks) for row in rows],
            ],
        )


def _is_the_same(row: HealthReport, report: Report, node: Node) -> bool:
    # What was said before the node was forgiven does not count together with what is said now.
    is_forgiven = node.judged_from_at is not None and row.at <= node.judged_from_at
    return not is_forgiven and (row.status, row.failing) == (report.status, report.failing)


def _row(report: Report, source: str) -> HealthReport:
    return HealthReport(
        node_id=report.node_id,
        source=source,
        status=report.status,
        verdict=health.verdict_of(health.objections(report.status, report.failing)),
        failing=report.failing,
        checks=_as_json(report.checks),
        first_at=report.at,
        at=report.at,
    )


def _as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "ok": one.ok, "value": one.value, "message": one.message}
        for one in checks[: health.MOST_CHECKS]
    ]


def _forget_old(node_ids: Collection[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM inventory_healthreport WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER"
            " (PARTITION BY node_id ORDER BY at DESC, id DESC) AS place FROM inventory_healthreport"
            " WHERE node_id = ANY(%s)) ranked WHERE place > %s)",
            [sorted(node_ids), health.REPORTS_KEPT],
        )


# Judging ------------------------------------------------------------------------------------------------------------


def _said(locked: Mapping[int, Node]) -> dict[int, dict[str, list[health.Said]]]:
    """What each source said of each of these nodes since they were forgiven, the newest first."""
    said: dict[int, dict[str, list[health.Said]]] = {id_: defaultdict(list) for id_ in locked}
    rows = HealthReport.objects.filter(node__in=locked).filter(
        Q(node__judged_from_at=None) | Q(at__gt=F("node__judged_from_at"))
    )
    for node_id, source, status, failing, n_reports in rows.order_by("-at", "-id").values_list(
        "node_id", "source", "status", "failing", "n_reports"
    ):
        said[node_id][source].append(health.Said(health.objections(status, failing), n_reports))
    return said


def _judge(node: Node, said: Mapping[str, Sequence[health.Said]], actor: User | None, at: datetime) -> bool:
    """Bring a locked node's health in line with what is said of it; whether that changed anything."""
    opinions = {source: health.opinion_of(one) for source, one in sorted(said.items())}
    verdict = health.worst(opinion.verdict for opinion in opinions.values())
    if verdict != Health.HEALTHY:
        reason = "; ".join(
            f"{source}: {', '.join(opinion.names)}" for source, opinion in opinions.items() if opinion.names
        )
        return _go_bad(node, verdict, reason, actor, at)
    if node.health_by == HealthBy.REPORTS and all(opinion.is_content for opinion in opinions.values()):
        return _come_back(node, actor, at)
    return False


def _go_bad(node: Node, verdict: str, reason: str, actor: User | None, at: datetime) -> bool:
    now = Health.HEALTHY if node.health in (Health.DRAINING, Health.DRAINED) else node.health
    if node.drain_asked_at is not None and verdict != Health.FAILED:
        return False  # it gets no work anyway
    is_relapse = node.health_by == HealthBy.REPORTS and node.cooldown_until_at is not None
    is_ours_now = node.health == Health.SUSPECT and node.health_by == HealthBy.FAILURES
    if not (health.is_worse(verdict, now) or is_relapse or is_ours_now):
        return False
    before = nodes.facts_of(node)
    # What a person said of it stays theirs to take back.
    by = HealthBy.PERSON if node.health_by == HealthBy.PERSON else HealthBy.REPORTS
    if now == Health.HEALTHY or is_relapse or is_ours_now:
        nodes.begin_quarantine(node, at)
    node.cooldown_until_at = None  # it begins when the node is well again
    nodes.set_health(node, health.worst((verdict, now)), reason, at, by=by)
    nodes.save_and_record(
        "node.health_changed", node, before, actor=actor, at=at, reason=reason, is_audit=True
    )
    return True


def _come_back(node: Node, actor: User | None, at: datetime) -> bool:
    """A node that is well again cools down before it takes work."""
    if node.cooldown_until_at is not None:
        return False
    before = nodes.facts_of(node)
    if node.drain_asked_at is not None:
        nodes.set_health(node, nodes.when_asked_empty(node), "", at)
        node.judged_from_at = at
        reason = "Its reports are good again; an operator wants it empty."
    else:
        node.cooldown_until_at = at + health.cooldown(node.n_quarantines)
        reason = "Its reports are good again; it cools down."
        nodes.set_health(node, Health.SUSPECT, reason, at, by=HealthBy.REPORTS)
    nodes.save_and_record(
        "node.health_changed", node, before, actor=actor, at=at, reason=reason, is_audit=True
    )
    return True


# Upkeep -------------------------------------------------------------------------------------------------------------


@transaction.atomic
def end_cooldowns(*, at: datetime) -> list[Node]:
    """Nodes that have cooled down are healthy again. Called by the beat."""
    due = Node.objects.filter(
        health=Health.SUSPECT,
        health_by__in=(HealthBy.REPORTS, HealthBy.FAILURES),
        cooldown_until_at__lte=at,
    )
    locked = nodes.locked_many(list(due.values_list("pk", flat=True)))
    back = []
    for node in locked.values():
        # Somebody may have judged it while we waited for the lock.
        is_due = node.cooldown_until_at is not None and node.cooldown_until_at <= at
        if node.health != Health.SUSPECT or node.health_by not in _BY_RULES or not is_due:
            continue
        before = nodes.facts_of(node)
        nodes.set_health(node, Health.HEALTHY, "", at)
        node.cooldown_until_at = None
        node.judged_from_at = at
        nodes.save_and_record(
            "node.cooled_down", node, before, actor=None, at=at, reason="It has cooled down.", is_audit=True
        )
        back.append(node)
    return back


_BY_RULES: Final = (HealthBy.REPORTS, HealthBy.FAILURES)


def prune(*, at: datetime) -> int:
    """Forget what was seen of nodes long ago; return how many rows."""
    n_rows = 0
    n_rows += HealthReport.objects.filter(at__lt=at - health.REPORTS_KEPT_FOR).delete()[0]
    n_rows += NodeFailure.objects.filter(at__lt=at - health.FAILURES_KEPT_FOR).delete()[0]
    n_rows += PaceReading.objects.filter(at__lt=at - health.PACES_KEPT_FOR).delete()[0]
    return n_rows
