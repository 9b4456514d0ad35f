"""Many short jobs through the planner onto a real Slurm, against the same jobs by Slurm's own scheduling, in one run.

    python -m scripts.slurm_bench [--jobs 1000]

Needs root and Slurm's packages. Each job is one GPU, one step, and a command that ends at once. Both ways submit them
all first, by REST; the time runs from the first submission until the last job has ended. Exit code 1 if anything leaks:
a claim that stays, a job that ran twice or not at all.
"""

import argparse
import base64
import os
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Final

import django

from scripts.slurm_cluster import SlurmCluster, missing_programs

PAUSE_S: Final = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(prog="slurm_bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    n_jobs: int = parser.parse_args().jobs
    if missing := missing_programs():
        print(f"This machine lacks {', '.join(missing)}.", file=sys.stderr)
        return 1
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
    django.setup()
    from apps.scheduling.bench.server import throw_away_server

    folder = Path(tempfile.mkdtemp(prefix="switchyard-slurm-bench-"))
    slurm = SlurmCluster(folder, settings="MaxJobCount=50000")
    try:
        slurm.up()
        alone_s = _alone(slurm, n_jobs)
        print(f"{n_jobs} jobs by Slurm alone: {alone_s:.1f} s, {n_jobs / alone_s:.1f} a second", flush=True)
        with throw_away_server() as server:
            server.fresh_database()
            ours_s, faults = _ours(slurm, n_jobs)
        print(f"{n_jobs} jobs by the planner: {ours_s:.1f} s, {n_jobs / ours_s:.1f} a second", flush=True)
        print(f"factor {ours_s / alone_s:.2f}")
        for fault in faults:
            print(f"fault: {fault}")
        return 1 if faults else 0
    finally:
        slurm.down()
        shutil.rmtree(folder, ignore_errors=True)


def _alone(slurm: SlurmCluster, n_jobs: int) -> float:
    """Seconds that Slurm takes by itself: it chooses nodes and GPUs."""
    from apps.core import clock
    from apps.execution.backends.slurm.wire import Address, Wire

    wire = Wire(
        Address(rest_url=slurm.rest_url, user_name="root", key=slurm.jwt_key, slurm_conf=str(slurm.conf))
    )
    job = {
        "name": "alone", "nodes": 1, "tasks": 1, "cpus_per_task": 8, "memory_per_node": 64_000, "gres": "gpu:1",
        "no_requeue": True, "current_working_directory": str(slurm.shared),
        "standard_output": str(slurm.shared / "alone.%j"), "environment": {"PATH": "/usr/bin:/bin"},
    }  # fmt: skip
    began_s = clock.monotonic_s()
    for _ in range(n_jobs):
        wire.submit({"script": "#!/bin/bash\nsrun --overlap true\n", "job": job})
    while slurm.run("squeue", "-h"):
        clock.sleep(PAUSE_S)
    took_s = clock.monotonic_s() - began_s
    ended = slurm.run("squeue", "-h", "-t", "CD", "-n", "alone", "-o", "%A").split()
    if len(ended) != n_jobs:
        raise SystemExit(f"Slurm ended {len(ended)} of {n_jobs} jobs well.")
    wire.close()
    return took_s


def _ours(slurm: SlurmCluster, n_jobs: int) -> tuple[float, list[str]]:
    """Seconds that they take through the ledger, the planner and the backend; and what is wrong after it."""
    from apps.core import clock
    from apps.execution import services as execution
    from apps.execution.connections import SlurmDraft, connect_slurm
    from apps.inventory.models import Device
    from apps.jobs import services as jobs
    from apps.jobs.models import Job
    from apps.jobs.selectors import ledger_faults
    from apps.jobs.spec import JobRequest
    from apps.scheduling import services as scheduling
    from apps.teams.models import Membership, Team, User

    draft = SlurmDraft(
        rest_url=slurm.rest_url,
        user_name="root",
        secret=base64.b64encode(slurm.jwt_key).decode(),
        shared_dir=str(slurm.shared),
        slurm_conf=str(slurm.conf),
        accelerator="H100",
    )
    cluster = connect_slurm(name="slurm", draft=draft, actor=None, at=clock.now()).cluster
    team, user = Team.objects.create(name="bench"), User.objects.create(username="bench")
    Membership.objects.create(user=user, team=team, role="member")
    # One more line in a file for each time that a job's command runs.
    script = '#!/bin/sh\necho "$SWITCHYARD_JOB_ID" >>"$SWITCHYARD_RUN/../ran"\n'
    request = JobRequest.model_validate(
        {
            "name": "short",
            "team": "bench",
            "cluster": "slurm",
            "devices": 1,
            "time_limit": 600.0,
            "script": script,
        }
    )
    began_s = clock.monotonic_s()
    jobs.submit_jobs(requests=[request] * n_jobs, actor=user, at=clock.now())

    def tick(at: datetime) -> None:
        scheduling.run_pass(at=at)
        execution.reconcile_cluster(cluster_id=cluster.pk, at=at)

    while Job.objects.exclude(state="succeeded").exists():
        tick(clock.now())
    took_s = clock.monotonic_s() - began_s
    tick(clock.now())
    faults = list(ledger_faults())
    if n_held := Device.objects.exclude(claimed_share=0).count():
        faults.append(f"{n_held} devices are still claimed")
    ran = next(slurm.shared.glob("*/ran")).read_text().split()
    if len(ran) != n_jobs or len(set(ran)) != n_jobs:
        faults.append(f"{len(ran)} runs of {len(set(ran))} jobs")
    if left := slurm.run("squeue", "-h"):
        faults.append(f"{len(left.splitlines())} jobs are left in Slurm")
    return took_s, faults


if __name__ == "__main__":
    sys.exit(main())
