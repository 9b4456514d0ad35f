"""A small facility with teams, people and jobs in every state, made by the services as people would make it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.test import Client

from apps.inventory import services as inventory
from apps.inventory.models import AcceleratorType, Backend, Domain, DomainKind, Node
from apps.jobs import services as jobs
from apps.jobs.models import Job
from apps.jobs.spec import JobRequest
from apps.power.models import PowerLimit, PowerReading
from apps.power.openadr_models import VtnConnection, VtnEvent
from apps.reservations import services as reservations
from apps.scheduling.models import ForecastOutcome, LineBasis, Pass, Reason, UtilizationSample
from apps.teams import services as teams
from apps.teams.models import FacilityRole, MemberRole, Team, User

PASSWORD = "correct horse battery"
# A name as unkind as a name may be: markup, quotes, right-to-left, and as long as allowed.
UNKIND = ("<img src=x onerror=alert(1)> \"quoted\" 'single' & \u05e9\u05dc\u05d5\u05dd " + "x" * 120)[:120]


@dataclass
class Facility:
    """Handles to what was made."""

    admin: User
    operator: User
    auditor: User
    lead: User
    member: User
    stranger: User
    viewer: User
    vision: Team
    pretraining: Team
    speech: Team
    nodes: list[Node]
    waiting: Job
    held: Job
    running: Job
    finished: Job
    failed: Job
    unkind: Job
    last_pass: Pass


def signed_in(user: User, **more: bool) -> Client:
    client = Client(**more)  # type: ignore[arg-type]  # flags of the client
    client.force_login(user)
    return client


def _person(name: str, full_name: str, at: datetime, role: str = FacilityRole.NONE) -> User:
    return teams.create_user(
        username=name, password=PASSWORD, actor=None, at=at, facility_role=role, full_name=full_name
    )


def build_facility(*, at: datetime) -> Facility:
    people = {
        "admin": _person("ada", "Ada Admin", at, FacilityRole.ADMIN),
        "operator": _person("olga", "Olga Operator", at, FacilityRole.OPERATOR),
        "auditor": _person("aud", "Aud Auditor", at, FacilityRole.AUDITOR),
        "lead": _person("lea", "Lea Lead", at),
        "member": _person("max", "Max Member", at),
        "stranger": _person("sam", "Sam Stranger", at),
        "viewer": _person("vic", "Vic Viewer", at),
    }
    nodes = _nodes(at)
    vision = teams.create_team(name="Vision", actor=None, at=at)
    pretraining = teams.create_team(name="pretraining", actor=None, at=at, parent=vision)
    evaluation = teams.create_team(name="evaluation", actor=None, at=at, parent=vision)
    speech = teams.create_team(name="Speech", actor=None, at=at)
    for team, user, role in (
        (vision, people["lead"], MemberRole.LEAD),
        (pretraining, people["member"], MemberRole.MEMBER),
        (speech, people["stranger"], MemberRole.MEMBER),
    ):
        teams.set_member(team_id=team.pk, user=user, role=role, actor=None, at=at)
    for team, amount in ((vision, 40), (speech, 24), (pretraining, 24), (evaluation, 8)):
        entries = [teams.QuotaEntry("H100", amount)]
        teams.set_quota(team=team, entries=entries, actor=None, at=at, version=team.version, reason="Q4 plan")
    made = _jobs(people["member"], people["stranger"], nodes, at)
    _reservations(people["operator"], at)
    _records(made, at)
    return Facility(
        **people,
        vision=vision,
        pretraining=pretraining,
        speech=speech,
        nodes=nodes,
        last_pass=Pass.objects.latest("id"),
        **made,
    )


def _nodes(at: datetime) -> list[Node]:
    h100 = inventory.create_accelerator_type(name="H100", tdp_w=700, memory_gib=80, actor=None, at=at)
    slot = inventory.create_accelerator_type(name="cpu-slot", tdp_w=20, idle_w=0, actor=None, at=at)
    site = inventory.create_domain(name="Northgate", kind=DomainKind.FACILITY, actor=None, at=at)
    hall = inventory.create_domain(name="Hall A", kind=DomainKind.HALL, parent=site, actor=None, at=at)
    rack = inventory.create_domain(name="A1-01", kind=DomainKind.RACK, parent=hall, actor=None, at=at)
    spine = inventory.create_domain(name="SG-1", kind=DomainKind.SPINE, actor=None, at=at)
    leaves = [
        inventory.create_domain(name=f"L0{n}", kind=DomainKind.LEAF, parent=spine, actor=None, at=at)
        for n in (1, 2)
    ]
    PowerLimit.objects.create(domain=hall, hard_limit_w=120_000, limit_w=90_000)
    simulated = inventory.create_cluster(name="hall-a", backend=Backend.SIMULATED, actor=None, at=at)
    local = inventory.create_cluster(name="here", backend=Backend.LOCAL, actor=None, at=at)
    rows = [
        inventory.NodeFacts(
            name=f"l0{1 + n // 4}-n0{n % 4 + 1}",
            accelerator_type=h100,
            n_devices=8,
            cpus=128,
            memory_gib=2048,
            leaf=leaves[n // 4],
            power=rack,
            idle_w=900,
        )
        for n in range(8)
    ]
    nodes = inventory.create_nodes(cluster=simulated, rows=rows, actor=None, at=at)
    facts = inventory.NodeFacts(name="localhost", accelerator_type=slot, n_devices=2, cpus=2, memory_gib=8)
    nodes.append(inventory.create_node(cluster=local, facts=facts, actor=None, at=at))
    inventory.report_health(
        node_id=nodes[7].pk, health="failed", reason="uncorrectable ECC error on device 3", actor=None, at=at
    )
    return nodes


def request(name: str, team: str, **more: Any) -> JobRequest:
    return JobRequest.model_validate({"name": name, "team": team, **more})


def _jobs(member: User, stranger: User, nodes: list[Node], at: datetime) -> dict[str, Job]:
    secret = {"command": ["train", "--secret-flag"], "env": {"SECRET_TOKEN": "hunter2"}}

    def submit(name: str, actor: User, team: str, minutes: int, **more: Any) -> Job:
        then = at + timedelta(minutes=minutes)
        return jobs.submit_job(request=request(name, team, **more), actor=actor, at=then)

    def start(job: Job, node: Node, first: int, minutes: int) -> int:
        then = at + timedelta(minutes=minutes)
        count = int(job.n_devices)
        grant = jobs.Grant(
            node.pk,
            0,
            1,
            0,
            tuple((first + index, Decimal(1)) for index in range(count)),
            8,
            64,
            700.0 * count,
        )
        allocation = jobs.allocate(
            job_id=job.pk,
            cluster_id=node.cluster_id,
            placements=[grant],
            pass_id=None,
            at=then,
            why={"score": 0.94, "chosen": "leaves no partial leaf"},
        )
        jobs.allocation_started(allocation_id=allocation.pk, fence=allocation.fence, at=then)
        return allocation.pk

    wants = {"devices": 4, "accelerators": ["H100"], "time_limit": 7200, **secret}
    running = submit("fm-70b-pretrain", member, "pretraining", 0, **wants)
    start(running, nodes[0], 0, 1)
    finished, failed = (
        submit(name, member, "pretraining", 1, **wants) for name in ("eval-nightly", "eval-broken")
    )
    for job, outcome, code, message in (
        (finished, "succeeded", 0, ""),
        (failed, "failed", 3, "The command ended with exit code 3."),
    ):
        allocation_id = start(job, nodes[1], 0, 2)
        jobs.allocation_ended(
            allocation_id=allocation_id,
            fence=1,
            at=at + timedelta(minutes=9),
            outcome=outcome,  # type: ignore[arg-type]  # one of two outcomes
            exit_code=code,
            message=message,
        )
    waiting = submit(
        "moe-8x22b-sft",
        member,
        "pretraining",
        3,
        replicas=4,
        devices=8,
        topology={"required": "leaf"},
        priority=50,
        **{key: value for key, value in wants.items() if key != "devices"},
    )
    held = submit("asr-large", stranger, "Speech", 4, held=True, devices=2, command=["true"])
    unkind = submit(UNKIND, stranger, "Speech", 5, devices=8, accelerators=["H100"], command=["true"])
    return {
        "running": running,
        "finished": finished,
        "failed": failed,
        "waiting": waiting,
        "held": held,
        "unkind": unkind,
    }


def _reservations(operator: User, at: datetime) -> None:
    for name, teams_of, days in (("RSV-0312", ("Vision",), 1), ("MNT-0044", (), 3)):
        draft = reservations.Draft(
            name=name,
            starts_at=at + timedelta(days=days),
            ends_at=at + timedelta(days=days + 1),
            nodes=("l02-n01", "l02-n02"),
            teams=teams_of,
            reason="release week",
        )
        reservations.create_reservation(draft=draft, actor=operator, at=at)


def _records(made: dict[str, Job], at: datetime) -> None:
    """What the planner and the rollups leave behind, without running them."""
    a_pass = Pass.objects.create(
        started_at=at + timedelta(minutes=29),
        finished_at=at + timedelta(minutes=29, seconds=1),
        n_queued=3,
        n_started=1,
        n_waiting=2,
        phase_ms={"load": 11.0, "plan": 20.5, "check": 2.0, "commit": 4.5},
        summary={"waiting": {"topology": {"jobs": 1, "devices": 32}}},
        fragmentation=[["H100", 42.0, 10.5, 42.0], ["CPU slots", 2.0, None, None]],
    )
    LineBasis.objects.create(
        id=1,
        pass_id=a_pass.pk,
        at=a_pass.started_at,
        order="priority",
        team_places=dict.fromkeys(map(str, Team.objects.values_list("id", flat=True)), 0),
    )
    sentence = "No leaf has 4 free nodes; L02 has 3."
    for rank, (name, code) in enumerate((("waiting", "topology"), ("unkind", "priority")), 1):
        Reason.objects.create(
            job=made[name],
            pass_id=a_pass.pk,
            at=a_pass.started_at,
            code=code,
            sentence=sentence if code == "topology" else "1 job ranks higher for the same devices.",
            binding=[code],
            rank=rank,
            expected_start_at=at + timedelta(hours=2, minutes=rank),
        )
    for minutes in (3, 20):
        ForecastOutcome.objects.create(
            job=made["running"],
            foretold_at=at,
            foretold_start_at=at + timedelta(minutes=5),
            started_at=at + timedelta(minutes=minutes),
        )
    _grid(at)
    hall, h100 = Domain.objects.get(name="Hall A"), AcceleratorType.objects.get(name="H100")
    for minute in range(0, 30, 5):
        then = at + timedelta(minutes=minute)
        PowerReading.objects.create(domain=hall, at=then, draw_w=30_000 + 500 * minute)
        UtilizationSample.objects.create(
            at=then,
            accelerator_type=h100,
            is_simulated=True,
            n_capacity=64,
            n_unhealthy=8,
            claimed=4 + minute / 5,
            left_free=40.0,
            of_no_use=8.0,
        )


def _grid(at: datetime) -> None:
    """A server of the grid that has gone silent, with an event that nobody can take as it is."""
    hall = Domain.objects.get(name="Hall A")
    made = VtnConnection.objects.create(
        name="Utility",
        base_url="https://vtn.utility.example/" + "openadr3/" * 12 + "3.1.0",
        client_id="hall-a",
        sealed_secret="sealed",
        ven_name="hall-a",
        domain=hall,
        is_enabled=True,
        created_at=at,
        listed_at=at,
        last_error="The VTN answered GET /events with 503: " + "unavailable" * 12,
        n_failures=3,
        silent_since_at=at,
        notes=["e9: reportDescriptors[0].frequency must be at least -1"],
    )
    VtnEvent.objects.create(
        connection=made,
        external_id="e" * 128,
        name=UNKIND,
        first_listed_at=at,
        trouble="needs_person",
        is_acceptable=True,
        trouble_text="The target leaves 500 W of IT load; with all work paused the domain draws 58800 W.",
    )
