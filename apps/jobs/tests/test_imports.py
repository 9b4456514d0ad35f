"""Scripts and manifests of many styles, each with the job it means and what it says that cannot be meant."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from apps.jobs.imports import kubernetes, sbatch
from apps.jobs.imports.facts import Imported, Site, Unreadable, matching_types
from apps.jobs.spec import JobRequest

HERE = Path(__file__).parent / "imports"
SITE = Site(
    now=datetime(2026, 3, 2, 12, tzinfo=UTC),
    accelerators=("A100", "H100", "H200", "MI300X"),
    teams=("vision",),
    clusters=("local",),
)


@dataclass(frozen=True)
class Case:
    """What a file means.

    Attributes:
        jobs: Without their script, which is the file itself but for lines that set Slurm's variables.
        refused: Line and option in a script, path in a manifest.
        ignored: Options.
    """

    jobs: list[dict[str, Any]]
    refused: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


CASES = {
    "affinity.yaml": Case(
        jobs=[
            {
                "name": "picky",
                "image": "acme",
                "replicas": 1,
                "devices": 1,
                "accelerators": ["H100", "H200"],
                "command": ["./run"],
            }
        ],
    ),
    "array_from_zero.sh": Case(
        jobs=[
            {
                "name": "sweep",
                "time_limit": 3600,
                "array": {"size": 16, "max_running": 4},
                "replicas": 1,
                "devices": 1,
                "accelerators": ["A100"],
            }
        ],
    ),
    "array_of_chosen.sh": Case(
        jobs=[{"name": "again", "array": {"size": 3}, "replicas": 1, "devices": 1}],
    ),
    "array_with_step.sh": Case(
        jobs=[{"name": "folds", "array": {"size": 5}, "replicas": 1, "devices": 1}],
    ),
    "by_gpu.sh": Case(
        jobs=[{"name": "by-gpu", "replicas": 2, "devices": 8, "cpus": 48, "memory_gib": 640}],
        ignored=["script"],
    ),
    "by_task.sh": Case(
        jobs=[{"name": "tasks", "replicas": 6, "devices": 1, "cpus": 4, "memory_gib": 8}],
        ignored=["script", "srun"],
    ),
    "chained.sh": Case(
        jobs=[{"name": "evaluate", "after": [101, 102], "replicas": 1, "devices": 1}],
    ),
    "chained_any.sh": Case(
        jobs=[{"name": "clean-up", "replicas": 1, "devices": 0, "cpus": 1}],
        refused=["line 3 --dependency"],
    ),
    "constraint_either.sh": Case(
        jobs=[{"name": "either", "replicas": 1, "devices": 2, "accelerators": ["A100", "H100"]}],
    ),
    "constraint_feature.sh": Case(
        jobs=[{"name": "fast-net", "replicas": 1, "devices": 2, "accelerators": ["H100"]}],
        refused=["line 4 -C"],
    ),
    "cpu_only.sh": Case(
        jobs=[
            {"name": "prepare", "time_limit": 1800, "replicas": 1, "devices": 0, "cpus": 16, "memory_gib": 32}
        ],
    ),
    "elastic_range.sh": Case(
        jobs=[{"name": "range", "replicas": 2, "devices": 8}],
        ignored=["script", "--nodes"],
    ),
    "het.sh": Case(
        jobs=[
            {
                "name": "het",
                "groups": [
                    {"name": "component-0", "replicas": 1, "devices": 0, "cpus": 32},
                    {"name": "component-1", "replicas": 4, "devices": 8},
                ],
            }
        ],
        ignored=["script", "srun"],
    ),
    "indexed.yaml": Case(
        jobs=[
            {
                "name": "shards",
                "array": {"size": 100, "max_running": 10},
                "image": "busybox",
                "replicas": 1,
                "devices": 1,
                "command": [
                    "sh",
                    "-c",
                    'export JOB_COMPLETION_INDEX="${JOB_COMPLETION_INDEX:-$SWITCHYARD_ARRAY_INDEX}"; '
                    "work $JOB_COMPLETION_INDEX",
                ],
            }
        ],
    ),
    "job.yaml": Case(
        jobs=[
            {
                "name": "train",
                "team": "vision",
                "time_limit": 7200,
                "env": {"LR": "0.1"},
                "image": "ghcr.io/acme/train:1.2",
                "workdir": "/app",
                "grace_s": 120,
                "replicas": 1,
                "cpus": 3.5,
                "memory_gib": 32,
                "devices": 2,
                "command": ["python", "train.py", "--lr", "0.1"],
            }
        ],
        ignored=["env[1]", "restartPolicy", "backoffLimit", "ttlSecondsAfterFinished"],
    ),
    "jobset.yaml": Case(
        jobs=[
            {
                "name": "parameter-server",
                "image": "acme",
                "groups": [
                    {
                        "name": "driver",
                        "replicas": 1,
                        "cpus": 4,
                        "devices": 0,
                        "command": ["python", "driver.py"],
                    },
                    {"name": "workers", "replicas": 6, "devices": 4, "command": ["python", "worker.py"]},
                ],
            }
        ],
        ignored=["spec"],
    ),
    "kueue.yaml": Case(
        jobs=[
            {
                "name": "queued",
                "team": "vision",
                "image": "acme",
                "replicas": 4,
                "topology": {"preferred": "spine"},
                "devices": 8,
                "accelerators": ["A100"],
                "command": ["./run"],
            }
        ],
        ignored=["kueue.x-k8s.io/priority-class", "tolerations", "completionMode"],
    ),
    "later.sh": Case(
        jobs=[
            {
                "name": "night",
                "not_before": "2026-03-02T22:00:00+00:00",
                "deadline": "2026-03-03T08:00:00+00:00",
                "reservation": "maintenance-test",
                "priority": 50,
                "replicas": 1,
                "devices": 4,
            }
        ],
        ignored=["--nice"],
    ),
    "mail.sh": Case(
        jobs=[{"name": "told", "replicas": 1, "devices": 1}],
        ignored=["--mail-type", "--mail-user"],
    ),
    "many_switches.sh": Case(
        jobs=[{"name": "wide", "replicas": 64, "devices": 8}],
        refused=["line 5 --switches"],
        ignored=["script", "srun"],
    ),
    "mig.yaml": Case(
        jobs=[{"name": "slice", "image": "acme", "replicas": 1, "devices": 0, "command": ["./run"]}],
        refused=[
            "spec.template.spec.containers[0].resources.limits.nvidia.com/mig-1g.10gb",
            "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]",
        ],
    ),
    "mixed_types.sh": Case(
        jobs=[{"name": "mixed", "replicas": 1, "devices": 0, "cpus": 1}],
        refused=["line 3 --gres"],
    ),
    "mpi.yaml": Case(
        jobs=[
            {
                "name": "mpi",
                "image": "mpi",
                "groups": [
                    {"name": "launcher", "replicas": 1, "devices": 0, "command": ["mpirun", "./solve"]},
                    {"name": "worker", "replicas": 2, "devices": 8},
                ],
            }
        ],
        refused=["spec.mpiReplicaSpecs.Worker.template.spec.containers[0].command"],
        ignored=["spec", "slotsPerWorker"],
    ),
    "one_gpu.sh": Case(
        jobs=[
            {"name": "finetune", "time_limit": 9000, "replicas": 1, "devices": 1, "cpus": 8, "memory_gib": 64}
        ],
        ignored=["--output", "--error"],
    ),
    "pinned.sh": Case(
        jobs=[{"name": "pinned", "replicas": 1, "devices": 1}],
        refused=["line 4 --nodelist", "line 6 --licenses"],
        ignored=["--exclude"],
    ),
    "python_script.py.sh": Case(
        jobs=[{"name": "direct", "replicas": 1, "devices": 1}],
        ignored=["SLURM_JOB_ID"],
    ),
    "pytorch.yaml": Case(
        jobs=[
            {
                "name": "llm",
                "time_limit": 86400,
                "image": "pytorch/pytorch",
                "replicas": 4,
                "devices": 8,
                "command": ["torchrun", "train.py"],
            }
        ],
        ignored=["restartPolicy", "restartPolicy", "cleanPodPolicy", "spec", "nprocPerNode"],
    ),
    "pytorch_elastic.yaml": Case(
        jobs=[
            {
                "name": "elastic",
                "image": "acme",
                "replicas": {"min": 2, "max": 8, "preferred": 4},
                "devices": 1,
                "command": ["torchrun", "train.py"],
            }
        ],
        ignored=["rdzvBackend", "spec"],
    ),
    "quoted.sh": Case(
        jobs=[
            {
                "name": "two words",
                "held": True,
                "workdir": "/data/my project",
                "env": {"OMP_NUM_THREADS": "4", "NAME": "a"},
                "replicas": 1,
                "devices": 1,
            }
        ],
        ignored=["--export", "--gpus=5"],
    ),
    "rayjob.yaml": Case(
        jobs=[
            {
                "name": "ray-tune",
                "image": "rayproject/ray",
                "groups": [
                    {
                        "name": "head",
                        "replicas": 1,
                        "cpus": 4,
                        "memory_gib": 8,
                        "devices": 0,
                        "command": [
                            "sh",
                            "-c",
                            "ray start --head --port=6379 && python tune.py\ncode=$?; ray stop; exit $code",
                        ],
                    },
                    {
                        "name": "gpus",
                        "replicas": 2,
                        "devices": 4,
                        "command": [
                            "sh",
                            "-c",
                            'ray start --address="${SWITCHYARD_NODES%%,*}:6379" --block; exit 0',
                        ],
                    },
                ],
            }
        ],
        ignored=["rayVersion", "shutdownAfterJobFinishes"],
    ),
    "service.yaml": Case(
        jobs=[],
        refused=["Deployment/web"],
    ),
    "several.yaml": Case(
        jobs=[
            {"name": "first", "image": "acme", "replicas": 1, "devices": 0, "command": ["./first"]},
            {"name": "second", "image": "acme", "replicas": 1, "devices": 0, "command": ["./second"]},
        ],
        ignored=["ConfigMap"],
    ),
    "shares.sh": Case(
        jobs=[{"name": "notebook", "replicas": 1, "devices": 0.25}],
    ),
    "short_forms.sh": Case(
        jobs=[
            {"name": "resnet", "team": "vision", "time_limit": 5400, "replicas": 2, "devices": 4, "cpus": 4}
        ],
        ignored=["script", "-p", "-o"],
    ),
    "sidecar.yaml": Case(
        jobs=[{"name": "busy", "image": "acme", "replicas": 1, "devices": 0, "command": ["./run"]}],
        refused=["spec.containers[0].envFrom", "spec.containers[1]", "spec.initContainers"],
        ignored=["volumes[0]"],
    ),
    "signal_and_requeue.sh": Case(
        jobs=[{"name": "long", "preemptible": True, "grace_s": 120, "replicas": 1, "devices": 4}],
        ignored=["--open-mode"],
    ),
    "switches.sh": Case(
        jobs=[
            {"name": "close", "topology": {"preferred": "leaf", "max_wait": 600}, "replicas": 4, "devices": 8}
        ],
        refused=["line 7 mpirun"],
        ignored=["script", "--exclusive"],
    ),
    "trainjob.yaml": Case(
        jobs=[
            {
                "name": "tuned",
                "team": "vision",
                "image": "acme/tune",
                "replicas": 2,
                "cpus": 16,
                "devices": 4,
                "command": ["torchrun", "tune.py"],
            }
        ],
        ignored=["runtimeRef", "numProcPerNode", "trainer"],
    ),
    "tres.sh": Case(
        jobs=[{"name": "tres", "replicas": 3, "devices": 4, "accelerators": ["H200"]}],
        ignored=["script"],
    ),
    "two_nodes_srun.sh": Case(
        jobs=[
            {
                "name": "ddp",
                "time_limit": 86400,
                "replicas": 2,
                "devices": 8,
                "cpus": 96,
                "accelerators": ["H100"],
            }
        ],
        ignored=["script", "scontrol", "srun"],
    ),
    "typing_error.sh": Case(
        jobs=[{"name": "slip", "replicas": 1, "devices": 0, "cpus": 1}],
        refused=["line 3 --gpu", "line 4 --tmie", "line 5 --time"],
    ),
    "uneven.sh": Case(
        jobs=[{"name": "uneven", "replicas": 3, "devices": 3}],
        refused=["line 4 --gpus"],
        ignored=["script"],
    ),
    "unknown_gpu.sh": Case(
        jobs=[{"name": "old", "replicas": 1, "devices": 0, "cpus": 1}],
        refused=["line 3 --gres"],
    ),
    "usr1.sh": Case(
        jobs=[{"name": "lightning", "preemptible": False, "grace_s": 90, "replicas": 1, "devices": 2}],
        ignored=["--signal"],
    ),
    "volcano.yaml": Case(
        jobs=[
            {
                "name": "gang",
                "team": "vision",
                "image": "acme",
                "replicas": 8,
                "devices": 8,
                "topology": {"required": "leaf"},
                "command": ["./run"],
            }
        ],
        ignored=["policies", "spec", "schedulerName"],
    ),
}


def read(text: str, **more: Any) -> Imported:
    return (sbatch if text.startswith("#!") else kubernetes).read(text, SITE, **more)


def script(*options: str, body: str = "true") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), body, ""])


def one(*options: str, body: str = "true", **more: Any) -> dict[str, Any]:
    found = read(script(*options, body=body), **more)
    assert not found.is_refused, found.notes
    (job,) = found.jobs
    return job


def refusals(*options: str) -> list[str]:
    return [
        f"{note.option}: {note.why}" for note in read(script(*options)).notes if note.severity == "refused"
    ]


def test_every_file_has_its_case():
    assert sorted(CASES) == sorted(p.name for p in HERE.iterdir() if p.suffix in (".sh", ".yaml"))
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_a_file_means_its_job_or_says_what_it_cannot_mean(name):
    text, case = (HERE / name).read_text(), CASES[name]
    found = read(text)

    assert [{k: v for k, v in job.items() if k != "script"} for job in found.jobs] == case.jobs
    refused = [note for note in found.notes if note.severity == "refused"]
    said = [f"{n.where} {n.option}" if name.endswith(".sh") else n.where.split(": ")[-1] for n in refused]
    assert said == case.refused
    assert [note.option for note in found.notes if note.severity == "ignored"] == case.ignored
    assert all(note.why or note.severity == "understood" for note in found.notes)
    for job in found.jobs:
        JobRequest.model_validate({"team": "vision", **job})


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(".sh")])
def test_a_script_is_kept_but_for_lines_at_its_head(name):
    text = (HERE / name).read_text()
    (job,) = read(text).jobs
    kept = [line for line in job["script"].split("\n") if not line.startswith("export SLURM_")]

    assert kept == text.split("\n")


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(".sh")])
def test_every_option_of_a_script_is_named_in_a_note(name):
    text = (HERE / name).read_text()
    named = {note.line for note in read(text).notes}

    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#SBATCH") and "hetjob" not in line:
            assert number in named, line


# Slurm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("90", 5400), ("5:30", 330), ("1:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400), ("2-00:00:10", 172810),
        ("0:45", 45),
    ],
)  # fmt: skip
def test_times_are_read_as_sbatch_reads_them(said, seconds):
    assert one(f"--time={said}")["time_limit"] == seconds


@pytest.mark.parametrize("said", ["UNLIMITED", "infinite", "0"])
def test_no_limit_is_none(said):
    assert "time_limit" not in one(f"--time={said}")


@pytest.mark.parametrize(
    ("options", "replicas", "devices"),
    [
        (["--gpus=4"], 1, 4),
        (["-G", "-N2"], None, None),
        (["-N2 -G4"], 2, 2),
        (["--nodes 2", "--gpus-per-node 4"], 2, 4),
        (["--gres=gpu"], 1, 1),
        (["--gres=gpu:h100"], 1, 1),
        (["--gres=gpu:h100:3"], 1, 3),
        (["--gres=gpu:3(S:0-1)"], 1, 3),
        (["--gres=lustre:1,gpu:2"], 1, 2),
        (["--gres=none"], 1, 0),
        (["--tres-per-node=gres/gpu=2"], 1, 2),
        (["--tres-per-task=cpu:4,gres/gpu:1", "-n 3"], 3, 1),
        (["--ntasks=8 --ntasks-per-node=4 --gpus-per-task=1"], 2, 4),
        (["--gpus=8 --gpus-per-node=4"], 2, 4),
        (["--ntasks=4 --gres=gpu:4"], 1, 4),
        (["-n 4 --gpus=4"], 4, 1),
        (["--nodes=2 --ntasks=4 --gpus-per-task=2"], 2, 4),
        (["--gpus-per-node=2", "--gres=gpu:2"], 1, 2),
        (["--nodes=1k"], 1024, 0),
    ],
)
def test_devices_in_all_their_spellings(options, replicas, devices):
    if replicas is None:
        assert refusals(*options)
        return
    job = one(*options)
    assert (job["replicas"], job["devices"]) == (replicas, devices)


@pytest.mark.parametrize(
    ("said", "gib"), [("2048", 2), ("16G", 16), ("16GB", 16), ("1T", 1024), ("1048576K", 1), ("512M", 0.5)]
)
def test_memory(said, gib):
    assert one(f"--mem={said}")["memory_gib"] == gib


def test_the_last_of_an_option_counts_and_the_command_line_above_all():
    found = read(script("--gpus=1", "-G2"), options=["--time=5", "-G", "3"])

    assert found.jobs[0]["devices"] == 3
    assert found.jobs[0]["time_limit"] == 300
    assert [note.where for note in found.notes if "again later" in note.what] == ["line 2", "line 3"]


def test_a_beginning_that_only_one_option_has_is_enough():
    assert one("--ntasks-per-n=4", "--job=x")["name"] == "x"


def test_flags_may_be_written_together_and_values_apart_or_not():
    job = one("-HJ name -N 2 -t5")

    assert (job["held"], job["name"], job["replicas"], job["time_limit"]) == (True, "name", 2, 300)


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ("now+2hours", "2026-03-02T12:00:00+00:00"),
        ("now+90", "2026-03-02T10:01:30+00:00"),
        ("16:00", "2026-03-02T16:00:00+01:00"),
        ("08:00", "2026-03-03T08:00:00+01:00"),
        ("1:30pm", "2026-03-02T13:30:00+01:00"),
        ("midnight", "2026-03-03T00:00:00+01:00"),
        ("2026-07-01T08:00", "2026-07-01T08:00:00+02:00"),
        ("2026-07-01", "2026-07-01T00:00:00+02:00"),
    ],
)
def test_times_are_meant_in_the_sites_zone(said, then):
    site = Site(now=datetime(2026, 3, 2, 10, tzinfo=UTC), zone=ZoneInfo("Europe/Berlin"))
    (job,) = sbatch.read(script(f"--begin={said}"), site).jobs

    assert datetime.fromisoformat(job["not_before"]) == datetime.fromisoformat(then)


@pytest.mark.parametrize(
    "option",
    [
        "--begin=someday", "--begin=25:00", "--begin=2026-02-30", "--array=5-1", "--array=1-20000", "--array=a",
        "--array=0-3%0", "--signal=USR1@9999", "--nodes=0", "--nodes=4-2", "--mem=much", "--dependency=singleton",
        "--dependency=afterok:$JOB", "--dependency=afterok:1?afterok:2", "--clusters=other", "--gpus-per-socket=2",
        "--gres=shard:2", "--priority=-1", "--time=-5", "--job-name=''", "stray", "--unknown=1", "-Z 1", "--time",
        "--job-name='open", "--exclusive=user", "--gpus=4 --gpus-per-node=3 --nodes=2",
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(option):
    assert refusals(option)


def test_a_launcher_that_starts_everything_is_refused_in_a_gang_alone():
    gang = read(script("--nodes=2", body="mpirun ./solve"))

    assert [note.line for note in gang.notes if note.severity == "refused"] == [3]
    assert not read(script("--nodes=1", "-n 8", body="mpirun ./solve")).is_refused


@pytest.mark.parametrize(
    ("array", "index", "value"),
    [("0-3", 2, "2"), ("5-9", 0, "5"), ("10-50:10", 4, "50"), ("3,7,19", 1, "7"), ("4", 0, "4")],
)
def test_slurms_variables_have_their_values_when_the_script_runs(tmp_path, array, index, value):
    job = one(f"--array={array}", body='echo "$SLURM_ARRAY_TASK_ID $SLURM_JOB_ID ${SLURM_NNODES}"')
    path = tmp_path / "script"
    path.write_text(job["script"])
    env = {
        "PATH": os.environ["PATH"],
        "SWITCHYARD_ARRAY_INDEX": str(index),
        "SWITCHYARD_JOB_ID": "17",
        "SWITCHYARD_N_REPLICAS": "1",
    }

    assert subprocess.run(["bash", path], env=env, capture_output=True, text=True).stdout == f"{value} 17 1\n"


@pytest.mark.parametrize(
    "text", ["", "#SBATCH --gpus=1\n", "echo no shebang\n", "#!/bin/sh\n" + "x" * 1_000_001]
)
def test_what_is_no_script_is_said_to_be_none(text):
    with pytest.raises(Unreadable):
        sbatch.read(text, SITE)


# Kubernetes -----------------------------------------------------------------------------------------------------

LAUGHS = "\n".join(
    ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)), "kind: Job"]
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "kind: " + "[" * 5000,
        "kind: Job\nspec: &s\n  again: *s\n",
        "kind: Job\nkind: Pod\n",
        "kind: !!python/object/apply:os.system ['true']\n",
        "kind: Job\n---\n- 1\n",
        "kind: [\n",
        "kind: Job\nx: " + "9" * 6000,
        "kind: Job\n? [1, 2]\n: x\n",
        "kind: Job\nx: " + "y" * 300_000,
        "kind: Job\nx: [" + "1," * 50_000 + "]",
        "kind: Pod\nmetadata: {name: p}\n---\n" * 300,
        "kind: Job\nx: 2026-99-99\n",
        "\x00kind: Job",
    ],
)
def test_hostile_text_is_refused_whole(text):
    with pytest.raises(Unreadable):
        kubernetes.read(text, SITE)


def pod(**more: Any) -> str:
    container = {"name": "c", "image": "i", "command": ["x"], **more.pop("container", {})}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [container], **more},
        }
    )


@pytest.mark.parametrize(
    ("cpu", "memory", "cpus", "gib"),
    [
        ("500m", "1Gi", 0.5, 1),
        (2, "1024Mi", 2, 1),
        ("0.1", "1073741824", 0.1, 1),
        (1.5, "2e9", 1.5, 1.862645),
    ],
)
def test_amounts(cpu, memory, cpus, gib):
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    (job,) = kubernetes.read(pod(container={"resources": resources}), SITE).jobs

    assert (job["cpus"], job["memory_gib"]) == (cpus, gib)


def test_what_is_not_known_is_named_by_its_path():
    found = kubernetes.read(pod(somethingNew={"a": 1}, container={"other": True}), SITE)

    assert {note.where for note in found.notes if note.severity == "ignored"} == {
        "Pod/p: spec.somethingNew",
        "Pod/p: spec.containers[0].other",
    }


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"containers": "x"}, "spec.containers"),
        ({"containers": [1]}, "spec.containers[0]"),
        ({"container": {"command": None}}, "spec.containers[0].command"),
        ({"container": {"command": [1]}}, "spec.containers[0].command"),
        ({"container": {"env": [{"name": "A", "value": 1}]}}, "spec.containers[0].env[0]"),
        (
            {"container": {"resources": {"limits": {"nvidia.com/gpu": "many"}}}},
            "spec.containers[0].resources.limits.nvidia.com/gpu",
        ),
        ({"nodeSelector": {"pool": "blue"}}, "spec.nodeSelector.pool"),
        ({"nodeName": "n1"}, "spec.nodeName"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named_by_its_path(fields, path):
    found = kubernetes.read(pod(**fields), SITE)

    assert f"Pod/p: {path}" in [note.where for note in found.notes if note.severity == "refused"]


def test_a_command_with_a_variable_of_the_manifest_is_filled_in():
    container = {"command": ["run", "$(A)", "$$(A)", "$(UNKNOWN)"], "env": [{"name": "A", "value": "1"}]}
    (job,) = kubernetes.read(pod(container=container), SITE).jobs

    assert job["command"] == ["run", "1", "$(A)", "$(UNKNOWN)"]


# Names and random text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("h100", ["H100-80GB"]),
        ("NVIDIA-H100-80GB-HBM3", ["H100-80GB"]),
        ("nvidia-tesla-a100", ["A100-40GB", "A100-80GB"]),
        ("a100_80gb", ["A100-80GB"]),
        ("a100-sxm4-40gb", ["A100-40GB"]),
        ("80gb", []),
        ("v100", []),
        ("mi300x", ["MI300X"]),
        ("gpu", []),
    ],
)
def test_types_are_found_by_the_words_of_their_name(wanted, found):
    assert matching_types(wanted, ["H100-80GB", "A100-40GB", "A100-80GB", "MI300X"]) == found


OPTIONS = st.sampled_from([f"--{name}" for name in sbatch._ALL] + [f"-{letter}" for letter in sbatch._SHORT])
VALUES = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"[0-9:%,\-=@.a-zA-Z]{0,12}", fullmatch=True),
    st.sampled_from(
        ["gpu:h100:4", "0-9%2", "1-0", "now+1hour", "afterok:1", "B:USR1@60", "1@5", "64G", "999999999999"]
    ),
)


def whole(text: str) -> None:
    """Read it; whatever comes out is bounded, and only the parser's own error is raised."""
    try:
        found = read(text)
    except Unreadable:
        return
    for note in found.notes:
        assert note.what
    for job in found.jobs:
        assert job["name"]


@given(
    st.lists(st.tuples(OPTIONS, st.sampled_from(["=", " ", ""]), VALUES), max_size=12), st.text(max_size=60)
)
def test_no_option_breaks_the_reader_of_scripts(options, body):
    lines = [f"#SBATCH {name}{sign}{value}" for name, sign, value in options]
    whole("\n".join(["#!/bin/sh", *lines, body]))


@given(st.text(max_size=300))
@example("#!/bin/sh\n#SBATCH \\")
@example("---\n...\n%YAML 1.1")
def test_no_text_breaks_the_readers(text):
    whole(text)
    whole("#!/bin/sh\n#SBATCH " + text)
    whole("kind: Job\nspec: " + text)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "template", "spec", "containers", "metadata", "labels", "resources", "limits", "nvidia.com/gpu", "cpu",
                "command", "args", "env", "name", "value", "nodeSelector", "affinity", "nodeAffinity", "replicas",
                "parallelism", "completions", "replicatedJobs", "tasks", "trainer", "rayClusterSpec",
                "workerGroupSpecs", "headGroupSpec", "pytorchReplicaSpecs", "Worker", "Master",
                "elasticPolicy", "runPolicy", "suspend",
                "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions", "values",
            ]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=25,
)  # fmt: skip


@given(st.sampled_from([*kubernetes._KINDS, "CronJob", "List"]), VALUE, VALUE)
def test_no_manifest_breaks_the_reader(kind, metadata, spec):
    whole(yaml.safe_dump({"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": spec}))
