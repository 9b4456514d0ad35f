"""How this machine is: disk, memory, load, and its NVIDIA devices where there are any."""

import csv
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from apps.execution.backends.base import NodeCheck, ProbedNode

LEAST_DISK_SHARE: Final = 0.02
LEAST_DISK_BYTES: Final = 512 * 1024 * 1024
LEAST_MEMORY_SHARE: Final = 0.02
MOST_LOAD_A_CPU: Final = 20.0  # over 15 minutes
MOST_TEMPERATURE_C: Final = 90.0
PATIENCE_S: Final = 10.0
_SMI: Final = "nvidia-smi"
_FIELDS: Final = ("index", "temperature.gpu", "ecc.errors.uncorrected.volatile.total")
_log = logging.getLogger(__name__)


def machine_checks(folder: Path) -> tuple[NodeCheck, ...]:
    """Checks of the machine itself.

    Args:
        folder: Where runs are kept; its disk is the one that matters.
    """
    return (_disk(folder), _memory(), _load())


def _disk(folder: Path) -> NodeCheck:
    total, _, free = shutil.disk_usage(folder)
    share = free / total if total else 0.0
    ok = share >= LEAST_DISK_SHARE and free >= LEAST_DISK_BYTES
    return NodeCheck("disk_space", ok, round(share, 4), f"{free / 2**30:.1f} GiB are free")


def _memory() -> NodeCheck:
    memory = psutil.virtual_memory()
    share = memory.available / memory.total if memory.total else 0.0
    return NodeCheck(
        "memory",
        share >= LEAST_MEMORY_SHARE,
        round(share, 4),
        f"{memory.available / 2**30:.1f} GiB are available",
    )


def _load() -> NodeCheck:
    per_cpu = os.getloadavg()[2] / (os.cpu_count() or 1)
    return NodeCheck("load", per_cpu <= MOST_LOAD_A_CPU, round(per_cpu, 2), "a CPU, over 15 minutes")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as its driver sees it; what it does not tell is None."""

    index: int
    temperature_c: float | None
    n_uncorrected: float | None  # ECC errors since the driver was loaded


@dataclass(frozen=True, slots=True)
class Gpus:
    """All devices of this machine, or why the driver does not tell."""

    found: tuple[Gpu, ...] = ()
    trouble: str = ""


def gpus() -> Gpus | None:
    """Ask the driver; None where there is nobody to ask."""
    program = shutil.which(_SMI)
    if program is None:
        return None
    try:
        said = subprocess.run(
            [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Gpus(trouble=f"{_SMI} did not answer within {PATIENCE_S:.0f} s")
    except OSError as error:
        _log.warning("%s cannot be run: %s", _SMI, error)
        return None
    if said.returncode != 0:
        first = (said.stdout or said.stderr).strip().split("\n", 1)[0]
        return Gpus(trouble=f"{_SMI} failed: {first}"[:300])
    return Gpus(_parsed(said.stdout))


def _parsed(text: str) -> tuple[Gpu, ...]:
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == len(_FIELDS) and row[0].strip().isdigit():
            found.append(Gpu(int(row[0]), _number(row[1]), _number(row[2])))
    return tuple(found)


def _number(text: str) -> float | None:
    """A value of the driver's; `[N/A]`, `[Not Supported]` and the like are none."""
    text = text.strip()
    return float(text) if text.replace(".", "", 1).isdigit() else None


def gpu_checks(node: ProbedNode, seen: Gpus | None) -> tuple[NodeCheck, ...]:
    """Checks of a node's devices. Of slots, and where there is nobody to ask, nothing is known."""
    if seen is None or not node.has_accelerators:
        return ()
    if seen.trouble:
        return (NodeCheck("driver", ok=False, message=seen.trouble),)
    ours = [gpu for gpu in seen.found if gpu.index < node.n_devices]
    n_missing = max(node.n_devices - len(ours), 0)
    missing = NodeCheck(
        "device_missing",
        n_missing == 0,
        float(n_missing),
        f"{len(ours)} of {node.n_devices} devices are there",
    )
    return (missing, *_temperature(ours), *_ecc(ours))


def _temperature(ours: Sequence[Gpu]) -> tuple[NodeCheck, ...]:
    told = [(gpu.temperature_c, gpu.index) for gpu in ours if gpu.temperature_c is not None]
    if not told:
        return ()
    hottest_c, index = max(told)
    return (
        NodeCheck(
            "temperature", hottest_c <= MOST_TEMPERATURE_C, hottest_c, f"degrees Celsius, of device {index}"
        ),
    )


def _ecc(ours: Sequence[Gpu]) -> tuple[NodeCheck, ...]:
    told = [(gpu.n_uncorrected, gpu.index) for gpu in ours if gpu.n_uncorrected is not None]
    if not told:
        return ()
    bad = [index for n_errors, index in told if n_errors]
    said = f"device {', '.join(str(index) for index in bad)}" if bad else ""
    return (NodeCheck("ecc_uncorrected", not bad, sum(n_errors for n_errors, _ in told), said),)
