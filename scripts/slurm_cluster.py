"""A small Slurm of one's own on one machine, for tests and for trying Switchyard with it.

Real daemons from the distribution's packages (munge, slurmctld, slurmd, slurmrestd): batch scripts really run, as
processes of this machine; only the cores, the memory and the GPUs of the nodes are pretended. Everything lies in one
folder and listens on 127.0.0.1 alone; nothing of the machine's own Slurm is read or changed. Needs root.

    python scripts/slurm_cluster.py FOLDER [--nodes 8] [--gpus 8]     until Ctrl-C
"""

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

DAEMONS: Final = ("munged", "slurmctld", "slurmd", "slurmrestd")
_NODE_MARK: Final = "SWITCHYARD_TRIAL_NODE"
_TRIES: Final = 600  # ten a second
_EIGHT: Final = tuple(f"n{number}" for number in range(1, 9))
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"


def missing_programs() -> list[str]:
    """Programs of Slurm that this machine lacks."""
    needed = (*DAEMONS, "scontrol", "squeue", "sinfo", "scancel", "srun", "sbatch")
    return [
        name for name in needed if shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_PATH}") is None
    ]


class SlurmCluster:
    """One cluster in one folder.

    Args:
        nodes: Their names; each has `gpus` GPUs, each of a type of its own (g0, g1, ...), so that a job can name
            the very GPU that it means.
        leaf_nodes: So many nodes hang below one leaf switch.
        settings: Lines for slurm.conf; of a key that is given twice the last one counts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[str] = _EIGHT,
        gpus: int = 8,
        cpus: int = 64,
        memory_mib: int = 512_000,
        leaf_nodes: int = 4,
        settings: str = "",
    ) -> None:
        self.folder, self.nodes, self.gpus, self.cpus = folder.resolve(), tuple(nodes), gpus, cpus
        self.memory_mib, self.leaf_nodes, self.settings = memory_mib, leaf_nodes, settings
        self.conf = self.folder / "etc" / "slurm.conf"
        self.shared = self.folder / "shared"
        self._port = _free_ports(len(self.nodes) + 2)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._was_killed = False

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self._port + 1}"

    @property
    def jwt_key(self) -> bytes:
        return (self.folder / "etc" / "jwt.key").read_bytes()

    @property
    def env(self) -> dict[str, str]:
        """With this the commands of Slurm speak to this cluster."""
        return {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "SLURM_CONF": str(self.conf)}

    def run(self, *command: str, check: bool = True, given: str | None = None) -> str:
        """What a command of Slurm printed."""
        done = subprocess.run(
            command,
            env=self.env,
            cwd="/",
            check=False,
            capture_output=True,
            text=True,
            input=given,
            timeout=60,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    # Up and down

    def up(self) -> None:
        """Start everything, and wait until every node takes work."""
        self._write()
        self._start(
            "munged", "-F", "--force", f"--key-file={self.folder}/etc/munge.key", f"--socket={self.folder}/run/munge",
            f"--pid-file={self.folder}/run/munged.pid", f"--log-file={self.folder}/log/munged.log",
            f"--seed-file={self.folder}/state/munge.seed",
        )  # fmt: skip
        _wait_until("munged", (self.folder / "run" / "munge").exists)
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.start_rest()
        _wait_until("every node", self._is_whole)
        _wait_until("slurmrestd", self._rest_listens)

    def down(self) -> None:
        """End all jobs and all daemons that were started here."""
        with contextlib.suppress(Exception):
            self.run("scancel", "--state=PENDING", "--user=root", check=False)
            self.run("scancel", "--user=root", check=False)
        for process in self._steps():
            _kill(process)
        for name in sorted(self._running, key=lambda name: name.startswith("slurmctld")):
            self._running[name].terminate()
        for running in self._running.values():
            try:
                running.wait(2)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
        for process in self._steps():
            _kill(process)
        self._running.clear()

    def mend(self) -> None:
        """End all jobs, and start again what was killed."""
        if self._was_killed:
            # Nodes may run what a controller that lost its memory does not know, and be drained for it later.
            for node in self.nodes:
                self.kill_node(node)
            self._was_killed = False
        self.start_controller()
        self.start_rest()
        for node in self.nodes:
            self.start_node(node)
        self.run("scancel", "--user=root", check=False)
        for process in self._steps():
            _kill(process)
        for line in self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines():
            node, state = line.split()
            if state.startswith(("drain", "down")) and not state.endswith("*"):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        _wait_until("an empty queue", lambda: not self.run("squeue", "-h"))
        _wait_until("every node", self._is_whole)
        _wait_until("slurmrestd", self._rest_listens)

    def start_controller(self) -> None:
        if not self._is_alive("slurmctld"):
            self._start("slurmctld", "-D", "-f", str(self.conf))
        _wait_until("slurmctld", lambda: "UP" in self.run("scontrol", "ping", check=False))

    def restart_controller(self) -> None:
        """slurmctld ends in peace, with all that it knows on the disk, and is started again."""
        self._running["slurmctld"].terminate()
        self._running["slurmctld"].wait()
        self.start_controller()

    def kill_controller(self) -> None:
        """slurmctld is gone at once, as if its machine had failed; jobs go on."""
        self._was_killed = True
        self._running["slurmctld"].kill()
        self._running["slurmctld"].wait()

    def start_rest(self) -> None:
        if self._is_alive("slurmrestd"):
            return
        # It will not run as root, and as somebody else it may not get to the folder.
        security = "disable_unshare_sysv,disable_unshare_files,disable_user_check"
        env = {**self.env, "SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": security}
        address = f"127.0.0.1:{self._port + 1}"
        self._start(
            "slurmrestd",
            "-f",
            str(self.conf),
            "-a",
            "rest_auth/jwt",
            "-s",
            "openapi/v0.0.38",
            address,
            env=env,
        )

    def kill_rest(self) -> None:
        self._running["slurmrestd"].kill()
        self._running["slurmrestd"].wait()

    def start_node(self, node: str) -> None:
        name = f"slurmd.{node}"
        if not self._is_alive(name):
            stepd = str(self.folder / "bin" / "slurmstepd")
            env = {**self.env, _NODE_MARK: node}
            self._start("slurmd", "-D", "-N", node, "-f", str(self.conf), "-d", stepd, env=env, name=name)

    def kill_node(self, node: str) -> None:
        """The node loses its power: its daemon and everything that runs there."""
        running = self._running[f"slurmd.{node}"]
        running.kill()
        running.wait()
        for process in self._steps(node):
            _kill(process)

    def _is_alive(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def _start(
        self, program: str, *arguments: str, env: dict[str, str] | None = None, name: str = ""
    ) -> None:
        name = name or program
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(self.folder / "bin" / program), *arguments],
                env=env or self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_whole(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).splitlines()
        return {
            line.split()[0] for line in states if line.endswith((" idle", " mixed", " allocated"))
        } == set(self.nodes)

    def _rest_listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port + 1), 1):
            return True
        return False

    def _steps(self, node: str | None = None) -> list[psutil.Process]:
        """Steps of this cluster's jobs, and all that they started."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() != "slurmstepd":
                    continue
                env = process.environ()
                if env.get("SLURM_CONF") == str(self.conf) and node in (None, env.get(_NODE_MARK)):
                    found += [process, *process.children(recursive=True)]
        return found

    # What is written

    def _write(self) -> None:
        for name in ("bin", "etc", "run", "log", "state", "spool", "dev", "shared"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in (*DAEMONS, "slurmstepd"):
            # Debian has them under names of its own, and they look at the name they were started by.
            for folder in _PATH.split(":"):
                real = next(
                    (p for p in (Path(folder, f"{name}-wlm"), Path(folder, name)) if p.exists()), None
                )
                link = self.folder / "bin" / name
                if real is not None and not link.is_symlink():
                    link.symlink_to(real)
        for key, size in (("munge.key", 128), ("jwt.key", 32)):
            path = self.folder / "etc" / key
            if not path.exists():
                path.touch(mode=0o600)
                path.write_bytes(secrets.token_bytes(size))
        self.conf.write_text(self._conf())
        (self.folder / "etc" / "topology.conf").write_text(self._topology())
        (self.folder / "etc" / "gres.conf").write_text(self._gres())

    def _conf(self) -> str:
        host, gres = (
            socket.gethostname().split(".")[0],
            ",".join(f"gpu:g{index}:1" for index in range(self.gpus)),
        )
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={self._port + 2 + position} Sockets=1"
            f" CoresPerSocket={self.cpus} ThreadsPerCore=1 RealMemory={self.memory_mib} Gres={gres} State=UNKNOWN"
            for position, node in enumerate(self.nodes)
        )
        folder = self.folder
        return f"""ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={self._port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge,cred_expire=5
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/etc/jwt.key
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
SlurmdTimeout=10
KillWait=3
CompleteWait=0
MessageTimeout=10
ReturnToService=1
JobRequeue=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=10000,bf_interval=2
PriorityType=priority/basic
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
TopologyPlugin=topology/tree
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU=1000 State=UP
{self.settings}
"""

    def _topology(self) -> str:
        groups = [
            self.nodes[first : first + self.leaf_nodes]
            for first in range(0, len(self.nodes), self.leaf_nodes)
        ]
        leaves = [
            f"SwitchName=leaf{number} Nodes={','.join(group)}" for number, group in enumerate(groups, start=1)
        ]
        names = ",".join(f"leaf{number}" for number in range(1, len(groups) + 1))
        return "\n".join([*leaves, f"SwitchName=spine Switches={names}", ""])

    def _gres(self) -> str:
        lines = []
        for index in range(self.gpus):
            path = self.folder / "dev" / f"gpu{index}"
            if not path.exists():
                # A copy of /dev/null, which nothing is ever read from; where none can be made a file does too.
                try:
                    os.mknod(path, 0o20666, os.makedev(1, 3))
                except OSError:
                    path.touch()
            lines.append(f"Name=gpu Type=g{index} File={path}")
        return "\n".join([*lines, ""])


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _free_ports(n_ports: int) -> int:
    """The first of so many ports in a row that nobody uses, below those that the kernel hands out by itself."""
    for first in range(20_000 + (os.getpid() * 37) % 8_000, 32_000 - n_ports, n_ports):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + n_ports):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise RuntimeError("There are no free ports.")


def _wait_until(what: str, ask: Any) -> None:
    for _ in range(_TRIES):
        if ask():
            return
        time.sleep(0.1)
    raise RuntimeError(f"{what} did not come up.")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="A small Slurm on this machine, until Ctrl-C.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    asked = parser.parse_args(arguments)
    if missing := missing_programs():
        print(f"missing: {' '.join(missing)}", file=sys.stderr)
        return 1
    cluster = SlurmCluster(
        asked.folder, nodes=[f"n{number}" for number in range(1, asked.nodes + 1)], gpus=asked.gpus
    )
    try:
        cluster.up()
        print(f"up: SLURM_CONF={cluster.conf}  {cluster.rest_url}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        cluster.down()
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main(sys.argv[1:]))
