"""Speaks to one Slurm: REST (slurmrestd, v0.0.38) to submit, change and read a job; its commands for what REST lacks.

Made for Slurm 22.05. Nothing here knows of allocations. Whatever keeps an answer from coming is an OutsideError.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import jwt

from apps.core import clock
from apps.core.errors import OutsideError

VERSION: Final = "v0.0.38"
TOKEN_FOR: Final = timedelta(minutes=10)
PATIENCE_S: Final = 20.0
NO_SUCH_JOB: Final = 2017
# What no later try will change: no such partition, rights, what no node can give, no such node.
_HOPELESS: Final = frozenset({2000, 2002, 2014, 2018})
_IDS_AT_ONCE: Final = 500
_MANY: Final = 20
_DIRECTORIES: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class SlurmError(OutsideError):
    """Slurm answered that it will not."""

    def __init__(self, message: str, *, code: int, permanent: bool = False) -> None:
        super().__init__(message, permanent=permanent)
        self.code = code


class NoAnswer(OutsideError):
    """Nobody answered: whether what was asked for was done is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a Slurm is, and as whom to speak to it.

    Attributes:
        key: What tokens are signed with; None: `token` is used as it is.
        slurm_conf: For the commands; empty: Slurm's own default.
    """

    rest_url: str
    user_name: str
    key: bytes | None = None
    token: str = ""
    slurm_conf: str = ""


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job, as the list of all jobs has it."""

    id: int
    state: str
    reason: str
    name: str
    user: str
    started_at: datetime | None
    ends_at: datetime | None  # by its limit, or when it did
    nodes: str  # as Slurm writes them, in brackets


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node.

    Attributes:
        state: One word, as sinfo has it: idle, mixed, allocated, draining, drained, down, ...
        gres: As configured: gpu:g0:1,gpu:g1:1, or gpu:h100:8(S:0-1).
    """

    name: str
    state: str
    is_answering: bool
    gres: str
    cpus: int
    memory_mib: int
    features: str
    reason: str


class Wire:
    """One conversation; a new one for each look costs a handshake and nothing else."""

    def __init__(self, address: Address, *, transport: httpx.BaseTransport | None = None) -> None:
        self._address = address
        self._http = httpx.Client(
            base_url=f"{address.rest_url.rstrip('/')}/slurm/{VERSION}",
            timeout=PATIENCE_S,
            transport=transport,
        )
        self._token = ""
        self._token_until_s = 0.0

    def close(self) -> None:
        self._http.close()

    # REST

    def ping(self) -> str:
        """The version that answers."""
        answer = self._ask("GET", "/ping")
        slurm = (answer.get("meta") or {}).get("Slurm") or {}
        pings = answer.get("pings") or []
        if not any(one.get("ping") == "UP" for one in pings):
            raise NoAnswer("slurmrestd answers, but slurmctld does not.")
        return str(slurm.get("release", ""))

    def submit(self, body: Mapping[str, Any]) -> list[int]:
        """Submit; return the numbers of the job, or of all its components."""
        # A job that is held, or that cannot start yet, is taken, and that it cannot start is told as an error.
        answer = self._ask("POST", "/job/submit", body, is_taken=lambda answer: bool(answer.get("job_id")))
        first = int(answer["job_id"])
        # The components of a heterogeneous job are numbered one after the other.
        return list(range(first, first + len(body.get("jobs", (None,)))))

    def update(self, slurm_id: int, changes: Mapping[str, Any]) -> None:
        self._ask("POST", f"/job/{slurm_id}", changes)

    def job(self, slurm_id: int) -> Mapping[str, Any] | None:
        """All that is known of a job; None: Slurm does not know it, or not any more."""
        try:
            answer = self._ask("GET", f"/job/{slurm_id}")
        except SlurmError as error:
            if error.code == NO_SUCH_JOB:
                return None
            raise
        found: list[Mapping[str, Any]] = answer.get("jobs") or []
        return next((one for one in found if one.get("job_id") == slurm_id), None)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        is_taken: Callable[[Mapping[str, Any]], bool] = lambda _: False,
    ) -> Mapping[str, Any]:
        headers = {
            "X-SLURM-USER-NAME": self._address.user_name,
            "X-SLURM-USER-TOKEN": self._signed(),
        }
        try:
            response = self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise NoAnswer(f"slurmrestd does not answer: {error or type(error).__name__}.") from error
        try:
            answer = response.json()
        except ValueError:
            raise NoAnswer(f"slurmrestd answers {response.status_code} and nothing that is JSON.") from None
        if not isinstance(answer, dict):
            raise NoAnswer("slurmrestd answers something else than an object.")
        if is_taken(answer):
            return answer
        errors = answer.get("errors") or []
        if errors:
            raise _error_of(errors[0])
        if response.is_error:
            raise NoAnswer(f"slurmrestd answers {response.status_code}.")
        return answer

    def _signed(self) -> str:
        if self._address.key is None:
            return self._address.token
        now_s = clock.now().timestamp()
        if now_s > self._token_until_s:
            claims = {
                "iat": int(now_s),
                "exp": int(now_s + TOKEN_FOR.total_seconds()),
                "sun": self._address.user_name,
            }
            self._token = jwt.encode(claims, self._address.key, algorithm="HS256")
            self._token_until_s = now_s + TOKEN_FOR.total_seconds() / 2
        return self._token

    # Commands

    def jobs(self) -> list[JobLine]:
        """All jobs that Slurm knows, also those that ended lately. One short line each: ten thousand take 0.2 s."""
        lines = self._run("squeue", "-h", "-a", "-t", "all", "-o", "%A|%T|%r|%S|%e|%u|%N|%j").splitlines()
        found = [line.split("|", 7) for line in lines if line]
        return [
            JobLine(int(id_), state, reason, name, user, _instant(started), _instant(ends), nodes)
            for id_, state, reason, started, ends, user, nodes, name in found
            if id_.isdigit()
        ]

    def nodes(self) -> list[NodeLine]:
        """All nodes, each once."""
        lines = self._run("sinfo", "-h", "-a", "-N", "-o", "%N|%T|%G|%c|%m|%f|%E").splitlines()
        found = {}
        for line in lines:
            name, state, gres, cpus, memory, features, reason = line.split("|", 6)
            # A node in several partitions comes once for each. A * behind the state: it does not answer.
            found[name] = NodeLine(
                name=name,
                state=state.rstrip("*~#!%$@^-+"),
                is_answering="*" not in state,
                gres="" if gres == "(null)" else gres,
                cpus=int(re.sub(r"\D", "", cpus) or 0),
                memory_mib=int(re.sub(r"\D", "", memory) or 0),
                features="" if features == "(null)" else features,
                reason="" if reason == "none" else reason,
            )
        return list(found.values())

    def signal_running(self, slurm_ids: Collection[int], name: str) -> set[int]:
        """Signal every process of the steps of these jobs; return those that were over already."""
        return self._cancel(slurm_ids, "--state=RUNNING", f"--signal={name}")

    def cancel_waiting(self, slurm_ids: Collection[int]) -> None:
        """Take back those of these jobs that have not begun."""
        self._cancel(slurm_ids, "--state=PENDING")

    def cancel(self, slurm_ids: Collection[int]) -> None:
        """End these jobs, whatever they do: TERM, and KILL after Slurm's KillWait."""
        self._cancel(slurm_ids)

    def _cancel(self, slurm_ids: Collection[int], *options: str) -> set[int]:
        ids, over = sorted(slurm_ids), set()
        for first in range(0, len(ids), _IDS_AT_ONCE):
            some = [str(id_) for id_ in ids[first : first + _IDS_AT_ONCE]]
            done = self._start("scancel", "--verbose", *options, *some)
            if _is_cut_off(done.stderr):
                raise NoAnswer(f"scancel: {_last_line(done.stderr)}")
            for line in done.stderr.splitlines():
                if "error" in line and (number := re.search(r"job id (\d+)", line)):
                    over.add(int(number[1]))
        return over

    def drain(self, node: str, reason: str) -> None:
        # Slurm splits what it prints at these.
        said = re.sub(r"[|\s]+", " ", reason).strip() or "drained in Switchyard"
        self._run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={said[:200]}")

    def resume(self, node: str) -> None:
        self._run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def partitions(self) -> list[str]:
        return sorted(set(self._run("sinfo", "-h", "-a", "-o", "%R").split()))

    def topology(self) -> dict[str, tuple[str, str]]:
        """The leaf switch of each node, and the switch above that; empty without a topology of switches."""
        done = self._start("scontrol", "show", "topology", "-o")
        return _switches(done.stdout) if done.returncode == 0 else {}

    def held_gpus(self, slurm_ids: Collection[int]) -> dict[int, list[tuple[str, str]]]:
        """What running jobs hold on each of their nodes: (node, GRES with indices), by number."""
        found: dict[int, list[tuple[str, str]]] = {}
        # Of many jobs at once one long answer is cheaper than an answer each.
        asked = [[]] if len(slurm_ids) > _MANY else [[str(slurm_id)] for slurm_id in slurm_ids]
        for words in asked:
            # Of a job that is gone meanwhile nothing is said.
            for line in self._start("scontrol", "-d", "-o", "show", "job", *words).stdout.splitlines():
                number = re.match(r"JobId=(\d+)", line)
                if number is not None and int(number[1]) in slurm_ids:
                    found[int(number[1])] = _held(line)
        return found

    def _run(self, *command: str) -> str:
        done = self._start(*command)
        if done.returncode:
            said = _last_line(done.stderr) or f"exit code {done.returncode}"
            raise NoAnswer(f"{command[0]}: {said}")
        return done.stdout

    def _start(self, *command: str) -> "subprocess.CompletedProcess[str]":
        env = {
            "PATH": os.environ.get("PATH", _DIRECTORIES),
            "LANG": "C.UTF-8",
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_JWT": self._signed(),
        }
        if self._address.slurm_conf:
            env["SLURM_CONF"] = self._address.slurm_conf
        program = shutil.which(command[0], path=f"{env['PATH']}:{_DIRECTORIES}")
        if program is None:
            raise OutsideError(f"The site's machine lacks Slurm's command {command[0]}.")
        try:
            return subprocess.run(
                [program, *command[1:]],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=PATIENCE_S,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{command[0]} does not come back.") from None
        except OSError as error:
            raise OutsideError(f"{command[0]} cannot be started: {error.strerror}.") from error


def _error_of(error: Mapping[str, Any]) -> OutsideError:
    code = next((int(error[name]) for name in ("error_code", "error_number", "errno") if error.get(name)), 0)
    said = str(error.get("error") or error.get("description") or "no reason is given")
    # These say that slurmctld was not reached, or did not take the token; neither tells whether it heard.
    if code in (0, 1007, 1008, 5004, 5005) or _is_cut_off(said) or said == "Unspecified error":
        return NoAnswer(f"slurmctld does not answer slurmrestd: {said}.")
    return SlurmError(f"Slurm refuses: {said} ({code}).", code=code, permanent=code in _HOPELESS)


def _is_cut_off(said: str) -> bool:
    words = (
        "Unable to contact slurm controller",
        "Connection refused",
        "Socket timed out",
        "Zero Bytes were",
    )
    return any(one in said for one in words)


def _last_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1][:300] if lines else ""


def _instant(seconds: str) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds.isdigit() and int(seconds) else None


def _switches(listed: str) -> dict[str, tuple[str, str]]:
    above: dict[str, str] = {}
    leaf_of: dict[str, str] = {}
    for line in listed.splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split())
        name = facts.get("SwitchName", "")
        if facts.get("Level") == "0":
            leaf_of.update(dict.fromkeys(node_names(facts.get("Nodes", "")), name))
        elif facts.get("Level") == "1":
            above.update(dict.fromkeys(node_names(facts.get("Switches", "")), name))
    return {node: (leaf, above.get(leaf, "")) for node, leaf in leaf_of.items()}


def _held(line: str) -> list[tuple[str, str]]:
    return [
        (node, gres)
        for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", line)
        for node in node_names(nodes)
    ]


# Names of nodes and GPUs, as Slurm writes them ----------------------------------------------------------------------


def node_names(written: str) -> list[str]:
    """n[1-3,7],m2 written out."""
    names: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", written):
        names += _written_out(part)
    return names


def _written_out(part: str) -> list[str]:
    found = re.match(r"([^\[]*)\[([^\]]*)\](.*)$", part)
    if found is None:
        return [part]
    head, inside, tail = found.groups()
    names = []
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            names += [f"{head}{number:0{len(first)}d}{rest}" for rest in _written_out(tail)]
    return names


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a node, by the types that Slurm has for them, in the order of their indices."""

    types: tuple[str, ...]  # one a GPU; empty text: no type

    @property
    def is_exact(self) -> bool:
        """Each has a type of its own, so that a job can name the very ones that it means."""
        return "" not in self.types and len(set(self.types)) == len(self.types)

    def ask(self, indices: Sequence[int]) -> str:
        """What a job writes that is to have these; of GPUs that cannot be told apart only how many."""
        if not indices:
            return ""
        if self.is_exact and max(indices) < len(self.types):
            return ",".join(f"gpu:{self.types[index]}:1" for index in sorted(indices))
        kinds = set(self.types)
        kind = f"{kinds.pop()}:" if len(kinds) == 1 and "" not in kinds else ""
        return f"gpu:{kind}{len(indices)}"


def gpus_of(gres: str) -> Gpus:
    """GPUs from a node's configured GRES; others than GPUs are no devices of ours."""
    types: list[str] = []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] != "gpu":
            continue
        count = words[-1] if len(words) > 1 else "1"
        types += [words[1] if len(words) > 2 else ""] * (int(count) if count.isdigit() else 1)
    return Gpus(tuple(types))


def gpu_indices(detail: str, gpus: Gpus) -> list[int]:
    """Indices of the GPUs that a job holds on a node, from one entry of `gres_detail`: gpu:g3:1(IDX:3),gpu:..."""
    found: list[int] = []
    for inside in re.findall(r"gpu[^(,]*\(IDX:([^)]*)\)", detail):
        for piece in inside.split(","):
            first, _, last = piece.partition("-")
            if first.isdigit():
                found += range(int(first), int(last or first) + 1)
    return sorted({index for index in found if index < len(gpus.types)})
