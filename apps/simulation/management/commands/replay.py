"""`manage.py replay`: a real trace through the real engine, with a progress bar and a report. No database."""

import csv
import gzip
import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from apps.core import clock
from apps.simulation.replay import openb, swf

MAX_SEEDS = 1000


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise ArgumentTypeError("must be a whole number from 1 to 1000000")
    return int(text)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """A trace as text, gzipped or plain; what cannot be read is told in one line."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            yield lines
    except (swf.BadLog, openb.BadTrace) as error:
        raise CommandError(f"{path}: {error}") from error
    except KeyError as error:
        raise CommandError(f"{path}: there is no column {error}") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error


class Command(BaseCommand):
    """Replays a trace."""

    help = "Play a real trace through the real planning engine. Needs no database."
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        traces = parser.add_subparsers(dest="trace", required=True)
        log = traces.add_parser("swf", help="a batch log in the Standard Workload Format")
        log.add_argument("log", type=Path, metavar="LOG.swf.gz")
        log.add_argument(
            "--processors", type=_count, help="size of the machine (default: as the log's header tells)"
        )
        log.add_argument("--policy", choices=sorted(swf.POLICIES), default="default")
        log.add_argument("--starts", type=Path, metavar="OUT.csv", help="job_id,start_s")
        log.add_argument("--summary", type=Path, metavar="OUT.json")
        pods = traces.add_parser("openb", help="Alibaba's GPU pods, arriving one by one at an empty cluster")
        pods.add_argument("nodes", type=Path, metavar="NODES.csv.gz")
        pods.add_argument("pods", type=Path, metavar="PODS.csv.gz")
        seeds = pods.add_mutually_exclusive_group()
        seeds.add_argument(
            "--seed", type=_count, help=f"one round with this seed (default {openb.FIRST_SEED})"
        )
        seeds.add_argument(
            "--seeds", type=_count, metavar="N", help=f"N rounds, seeds from {openb.FIRST_SEED} on"
        )
        pods.add_argument(
            "--policy", choices=["default"], default="default", help="the product's own packing"
        )
        pods.add_argument("--summary", type=Path, metavar="OUT.json")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["trace"] == "swf":
            self._swf(options)
        else:
            self._openb(options)

    def _swf(self, options: dict[str, Any]) -> None:
        with _opened(options["log"]) as lines:
            log = swf.read_log(lines)
        n_procs = options["processors"] or log.n_procs
        if n_procs is None:
            raise CommandError("The log's header does not tell the size of the machine: give --processors.")
        too_large = sum(1 for job in log.jobs if job.n_procs > n_procs)
        if too_large:
            raise CommandError(f"{too_large} jobs ask for more than {n_procs} processors.")
        replay = swf.Replay(log, n_procs, swf.POLICIES[options["policy"]])
        began_s = clock.monotonic_s()
        is_whole = True
        with self._bar(len(log.jobs), "jobs", options) as bar:
            try:
                for n_ended in replay.run():
                    bar.update(n_ended)
            except KeyboardInterrupt:
                is_whole = False
        told = {
            "log": options["log"].name,
            "policy": options["policy"],
            "is_whole": is_whole,
            "rows_dropped": log.n_dropped,
            **swf.summary(replay),
            "seconds": clock.monotonic_s() - began_s,
        }
        if options["starts"]:
            self._write_starts(options["starts"], replay)
        self._tell(told, options["summary"])

    def _write_starts(self, path: Path, replay: swf.Replay) -> None:
        try:
            with path.open("w", newline="") as out:
                writer = csv.writer(out, lineterminator="\n")
                writer.writerow(["job_id", "start_s"])
                writer.writerows((job_id, _plain(start_s)) for job_id, start_s in swf.start_rows(replay))
        except OSError as error:
            raise CommandError(f"{path}: cannot be written: {error.strerror}") from error

    def _openb(self, options: dict[str, Any]) -> None:
        with _opened(options["nodes"]) as lines:
            nodes = openb.read_nodes(lines)
        with _opened(options["pods"]) as lines:
            pods = openb.read_pods(lines)
        if not nodes or not pods:
            raise CommandError("There are no nodes with GPUs, or no pods.")
        first = options["seed"] or openb.FIRST_SEED
        n_seeds = min(options["seeds"] or 1, MAX_SEEDS)
        rounds: list[openb.Round] = []
        n_pods = 0
        began_s = clock.monotonic_s()
        is_whole = True
        with self._bar(None, "pods", options) as bar:
            try:
                for seed in range(first, first + n_seeds):
                    bar.set_description(f"seed {seed}")
                    for place, now in enumerate(openb.play(nodes, pods, seed)):
                        if not place:
                            rounds.append(now)
                        n_pods += 1
                        bar.update()
            except KeyboardInterrupt:
                is_whole = False
        seconds = clock.monotonic_s() - began_s
        told = {
            "pods_list": options["pods"].name,
            "is_whole": is_whole,
            **openb.summary(rounds),
            "seconds": seconds,
            "pods_per_second": n_pods / seconds if seconds else None,
        }
        self._tell(told, options["summary"])

    def _bar(self, total: int | None, unit: str, options: dict[str, Any]) -> "tqdm[Any]":
        # tqdm draws to stderr, so that the report alone is on stdout; None: no bar where nobody looks.
        return tqdm(total=total, unit=f" {unit}", disable=None if options["verbosity"] else True)

    def _tell(self, told: dict[str, Any], path: Path | None) -> None:
        text = json.dumps(told, indent=1, allow_nan=False)
        if path is not None:
            try:
                path.write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise CommandError(f"{path}: cannot be written: {error.strerror}") from error
        if not told["is_whole"]:
            self.stdout.write("Interrupted; this is what was done so far.")
        self.stdout.write(
            "\n".join(f"{key}: {_short(value)}" for key, value in told.items() if key != "seeds")
        )


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _short(value: Any) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
