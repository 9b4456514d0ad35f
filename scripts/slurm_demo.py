"""`make slurm-demo`: a real Slurm of eight nodes on this machine, the site in front of it, and the README's gang.

Everything lies in one folder of its own (var/slurm-demo). Needs root and Slurm's packages. With --once it ends when the
gang has run, and its exit code says whether the gang ran where it was planned.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from apps.execution.backends.slurm.wire import node_names
from scripts.slurm_cluster import SlurmCluster, missing_programs

BASE: Final = Path(__file__).resolve().parent.parent
CLUSTER: Final = "slurm"
GANG: Final = {
    "name": "gang",
    "cluster": CLUSTER,
    "replicas": 4,
    "devices": 8,
    "time_limit": 600,
    "script": "#!/bin/bash\necho $SLURM_JOB_NODELIST\necho rank $SWITCHYARD_RANK on $SLURMD_NODENAME:"
    " devices $CUDA_VISIBLE_DEVICES\nsleep 5\n",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make slurm-demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--folder", type=Path, default=BASE / "var" / "slurm-demo")
    parser.add_argument("--once", action="store_true", help="end when the gang has run")
    asked = parser.parse_args()
    if missing := missing_programs():
        packages = (
            "munge slurmctld slurmd slurm-client slurmrestd slurm-wlm-basic-plugins slurm-wlm-jwt-plugin"
        )
        print(f"This machine lacks {', '.join(missing)}: apt-get install {packages}", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        print("A Slurm can only be started by root.", file=sys.stderr)
        return 1
    slurm = SlurmCluster(asked.folder / "slurm")
    site = None
    try:
        print("starting a Slurm of 8 nodes with 8 GPUs each", flush=True)
        slurm.up()
        env = {**os.environ, "SWITCHYARD_VAR": str(asked.folder)}
        command = [sys.executable, "-m", "scheduler_site.up", "--port", str(asked.port)]
        site = subprocess.Popen(command, cwd=BASE, env=env, start_new_session=True)
        demo = _Demo(site, asked.folder, f"http://127.0.0.1:{asked.port}")
        demo.wait_until_ready()
        demo.connect(slurm, env)
        is_right = demo.run_the_gang()
        if asked.once:
            return 0 if is_right else 1
        print(f"\nslurm: SLURM_CONF={slurm.conf} squeue\nCtrl-C ends the site and its Slurm.", flush=True)
        return site.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        if site is not None:
            site.send_signal(signal.SIGINT)
            site.wait()
        slurm.down()


class _Demo:
    def __init__(self, site: "subprocess.Popen[bytes]", folder: Path, url: str) -> None:
        self._site, self._folder, self._url = site, folder, url
        self._token = self._team = ""

    def wait_until_ready(self) -> None:
        while True:
            if self._site.poll() is not None:
                raise SystemExit("The site did not come up.")
            try:
                with urllib.request.urlopen(f"{self._url}/readyz", timeout=5):  # noqa: S310 (our own address)
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        accounts = json.loads((self._folder / "demo-accounts.json").read_text())
        member = next(one for one in accounts if one["role"] == "member")
        self._token, self._team = member["token"], member["team"]

    def connect(self, slurm: SlurmCluster, env: dict[str, str]) -> None:
        command = [
            sys.executable, "manage.py", "slurm", "connect", CLUSTER, "--url", slurm.rest_url, "--user", "root",
            "--key-file", str(slurm.folder / "etc" / "jwt.key"), "--shared-dir", str(slurm.shared),
            "--slurm-conf", str(slurm.conf), "--accelerator", "H100-SXM",
        ]  # fmt: skip
        if any(one["name"] == CLUSTER for one in self._ask("GET", "/clusters")["items"]):
            command[3] = "change"  # another day it listens at another port
        subprocess.run(command, cwd=BASE, env=env, check=True)

    def run_the_gang(self) -> bool:
        """Run it, and say whether Slurm ran it on the nodes of its placement."""
        job_id = self._ask("POST", "/jobs", {**GANG, "team": self._team})["id"]
        state = ""
        while state not in ("succeeded", "failed", "cancelled", "timed_out"):
            time.sleep(0.5)
            found = self._ask("GET", f"/jobs/{job_id}")
            if found["state"] != state:
                state = found["state"]
                print(f"job {job_id}: {state}", flush=True)
        placement = self._ask("GET", f"/jobs/{job_id}/placement")
        planned = sorted(_names(placement))
        log = self._ask("GET", f"/jobs/{job_id}/logs")["text"]
        ran_on = sorted(node_names(log.split("\n", 1)[0]))
        print(
            f"planned on        {','.join(planned)}\nSLURM_JOB_NODELIST {','.join(ran_on)}\n{log}", flush=True
        )
        print(f"page: {self._url}/jobs/{job_id}/")
        return state == "succeeded" and ran_on == planned

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 (our own address)
            f"{self._url}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)


def _names(placement: Any) -> set[str]:
    """The nodes in an answer of /placement."""
    if isinstance(placement, dict):
        own = {placement["node"]} if isinstance(placement.get("node"), str) else set()
        return own.union(*(_names(one) for one in placement.values()))
    if isinstance(placement, list):
        return set().union(*(_names(one) for one in placement))
    return set()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
