"""What Gavel's and Shockwave's traces share: their rows, and the measured throughput of each kind of job."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from apps.simulation.replay.training import BadTrace

# Columns from the first that all forms of the trace have in common: type, command, folder or data, ...
_FORMS: Final = {
    8: {"team": 0, "kind": 1, "steps": 5, "arrival": 6, "gpus": 7},
    10: {"kind": 0, "steps": 5, "gpus": 6, "arrival": 9},
    12: {"kind": 0, "steps": 5, "gpus": 6, "mode": 7, "duration": 10, "arrival": 11},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One job of such a trace."""

    kind: str  # model and batch size
    n_steps: int
    n_gpus: int
    submit_s: float
    team: str | None
    mode: str  # how its batch size changes
    duration_s: float | None  # alone on its GPUs, as the trace tells


def read_rows(lines: Iterable[str]) -> list[Row]:
    """Rows in the order of the file; the form is told by the number of columns."""
    rows = []
    for number, line in enumerate(lines, 1):
        columns = line.rstrip("\n").split("\t")
        form = _FORMS.get(len(columns))
        if form is None:
            raise BadTrace(f"line {number}: has {len(columns)} columns, not 8, 10 or 12")
        try:
            row = Row(
                kind=columns[form["kind"]],
                n_steps=int(columns[form["steps"]]),
                n_gpus=int(columns[form["gpus"]]),
                submit_s=float(columns[form["arrival"]]),
                team=columns[form["team"]] if "team" in form else None,
                mode=columns[form["mode"]] if "mode" in form else "static",
                duration_s=float(columns[form["duration"]]) if "duration" in form else None,
            )
        except ValueError as error:
            raise BadTrace(f"line {number}: {error}") from None
        if row.n_steps < 1 or row.n_gpus < 1 or not 0 <= row.submit_s < inf:
            raise BadTrace(
                f"line {number}: steps, GPUs and arrival must not be negative, nor steps and GPUs 0"
            )
        rows.append(row)
    return rows


class Throughputs:
    """Steps a second by worker type, kind of job and number of GPUs, alone on them."""

    def __init__(self, table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        self._of: dict[tuple[str, str], dict[int, float]] = {}
        for worker, kinds in table.items():
            for key, partners in kinds.items():
                # "('ResNet-18 (batch size 16)', 1)"
                kind, _, n_gpus = key.strip("()").rpartition(", ")
                try:
                    rate, n = float(partners["null"]), int(n_gpus)
                except (KeyError, TypeError, ValueError):
                    raise BadTrace(f"{worker}: {key}: has no throughput alone") from None
                if rate > 0:
                    self._of.setdefault((worker, kind.strip("'")), {})[n] = rate

    @classmethod
    def read(cls, text: str) -> "Throughputs":
        """From the published file."""
        try:
            return cls(json.loads(text))
        except (AttributeError, TypeError, json.JSONDecodeError) as error:
            raise BadTrace(f"is not a table of throughputs: {error}") from None

    def rate(self, worker: str, kind: str, n_gpus: int) -> float | None:
        """Steps a second; of a number that was not measured, as on the next smaller one; None: it does not run."""
        measured = self._of.get((worker, kind), {})
        below = [n for n in measured if n <= n_gpus]
        return measured[max(below)] if below else None
