"""`manage.py replay`: a real trace through the real engine, with a progress bar and a report. No database."""

import csv
import gzip
import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from apps.core import clock
from apps.simulation.replay import gavel, openb, philly, pollux, shockwave, sia, swf, training

MAX_SEEDS = 1000
# Where each deep-learning trace lies below SWITCHYARD_TRACES, unless the command names a place.
FOLDERS = {
    "philly": "dl-philly-2017",
    "pollux": "dl-pollux-osdi21",
    "sia": "dl-sia-sosp23",
    "gavel": "dl-gavel-osdi20",
    "shockwave": "dl-shockwave-nsdi23",
}


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise ArgumentTypeError("must be a whole number from 1 to 1000000")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ArgumentTypeError("must be a number from 0 to 1")
    return share


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise ArgumentTypeError("must be a number of seconds, 0 or more")
    return seconds


def _sizing(options: dict[str, Any]) -> training.Sizing | None:
    if options["elastic"]:
        return training.Sizing(options["preferred"], options["efficiency"])
    if options["preferred"] or options["efficiency"]:
        raise CommandError("--preferred and --efficiency go with --elastic.")
    return None


def _gpus_by_type(text: str) -> tuple[int, ...]:
    counts = text.split(":")
    if len(counts) != len(gavel.TYPES) or not all(n.isdigit() and int(n) <= 1_000_000 for n in counts):
        raise ArgumentTypeError(f"must be {len(gavel.TYPES)} whole numbers, such as 36:36:36")
    if not int(counts[0]):
        raise ArgumentTypeError(f"must have some {gavel.TYPES[0]}: it is what the others are compared with")
    return tuple(int(n) for n in counts)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """A trace as text, gzipped or plain; what cannot be read is told in one line."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            yield lines
    except (swf.BadLog, openb.BadTrace, training.BadTrace) as error:
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
        log.add_argument(
            "--forecasts", action="store_true", help="foretell each start, and report how far that was off"
        )
        log.add_argument(
            "--starving-s", type=_seconds, metavar="S", help="with the shortest first: passed for at most"
        )
        log.add_argument(
            "--starving-by-width",
            type=_share,
            metavar="W",
            help="of that, the share spared by all processors",
        )
        log.add_argument(
            "--against",
            type=Path,
            metavar="STARTS.csv",
            help="compare the start of each job with another run's --starts, or with reference starts",
        )
        log.add_argument("--against-column", default="start_s", metavar="COLUMN", help="default: start_s")
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
        self._add_training(traces)

    def _add_training(self, traces: Any) -> None:
        """The deep-learning traces."""
        microsoft = self._trace(traces, "philly", "74,167 jobs of Microsoft's Philly, 2017")
        microsoft.add_argument(
            "--gpus", type=_count, default=philly.N_GPUS, help=f"default {philly.N_GPUS}, as published"
        )
        tuned = self._trace(traces, "pollux", "elastic jobs with measured profiles on 16 x 4 T4")
        tuned.add_argument("--load", choices=pollux.LOADS, default="1.0")
        mixed = self._trace(traces, "sia", "the same jobs on three types of GPU")
        mixed.add_argument("--workloads", choices=sia.WORKLOADS, default="philly")
        mixed.add_argument(
            "--validation",
            type=Path,
            metavar=pollux.VALIDATION,
            help="validation profiles (default: those of the pollux trace beside the folder)",
        )
        for parser in (tuned, mixed):
            parser.add_argument("--workload", type=_count, metavar="N", help="this one alone (default: all)")
            parser.add_argument(
                "--elastic", action="store_true", help="let jobs change their size (default: as asked for)"
            )
            parser.add_argument(
                "--preferred",
                type=_count,
                metavar="N",
                help="of an elastic job (default: as many as asked for)",
            )
            parser.add_argument(
                "--efficiency",
                type=_share,
                default=0.0,
                metavar="E",
                help="an elastic job grows while each GPU works at least E times as fast as a single one",
            )
        models = self._trace(traces, "gavel", "jobs of known models on V100, P100 and K80")
        models.add_argument(
            "--gpus",
            type=_gpus_by_type,
            default=gavel.N_GPUS,
            metavar="V100:P100:K80",
            help=f"default {':'.join(map(str, gavel.N_GPUS))}",
        )
        models.add_argument("--vc", help="the jobs of this virtual cluster alone")
        dynamic = self._trace(traces, "shockwave", "jobs that change their batch size")
        dynamic.add_argument("--jobs", type=int, choices=sorted(shockwave.GPUS_OF), default=120)
        dynamic.add_argument("--gpus", type=_count, help="default: as published for the number of jobs")
        dynamic.add_argument(
            "--fixed-batch",
            action="store_true",
            help="no job changes its batch size, as the trace's durations",
        )

    def _trace(self, traces: Any, name: str, what: str) -> ArgumentParser:
        parser: ArgumentParser = traces.add_parser(name, help=what)
        parser.add_argument(
            "path", type=Path, nargs="?", help=f"the trace (default: {FOLDERS[name]} where the traces are)"
        )
        parser.add_argument("--policy", choices=sorted(training.POLICIES), default="default")
        parser.add_argument("--limit", type=_count, metavar="N", help="the first N jobs of each workload")
        parser.add_argument(
            "--starts", type=Path, metavar="OUT.csv", help="workload,job,submit_s,start_s,end_s"
        )
        parser.add_argument("--summary", type=Path, metavar="OUT.json")
        parser.add_argument("--scenario", type=Path, metavar="OUT.json", help="write what is simulated")
        return parser

    def handle(self, *args: Any, **options: Any) -> None:
        if options["trace"] == "swf":
            self._swf(options)
        elif options["trace"] == "openb":
            self._openb(options)
        else:
            self._training(options)

    def _swf(self, options: dict[str, Any]) -> None:
        with _opened(options["log"]) as lines:
            log = swf.read_log(lines)
        n_procs = options["processors"] or log.n_procs
        if n_procs is None:
            raise CommandError("The log's header does not tell the size of the machine: give --processors.")
        too_large = sum(1 for job in log.jobs if job.n_procs > n_procs)
        if too_large:
            raise CommandError(f"{too_large} jobs ask for more than {n_procs} processors.")
        changes = {
            name: options[name] for name in ("starving_s", "starving_by_width") if options[name] is not None
        }
        policy = replace(swf.POLICIES[options["policy"]], **changes)
        if changes and policy.order != "shortest":
            raise CommandError(
                "--starving-s and --starving-by-width go with a policy that has the shortest first."
            )
        others = None
        if options["against"]:
            with _opened(options["against"]) as lines:
                others = swf.read_starts(lines, options["against_column"])
        replay = swf.Replay(log, n_procs, policy, makes_forecasts=options["forecasts"])
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
            **changes,
            "is_whole": is_whole,
            "rows_dropped": log.n_dropped,
            **swf.summary(replay),
            **(swf.beside(replay, others) if others is not None else {}),
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

    def _training(self, options: dict[str, Any]) -> None:
        name = options["trace"]
        path = options["path"] or Path(settings.SWITCHYARD_TRACES) / FOLDERS[name]
        readers = {
            "philly": self._philly,
            "pollux": self._pollux,
            "sia": self._sia,
            "gavel": self._gavel,
            "shockwave": self._shockwave,
        }
        replay = readers[name](path, options)
        if options["scenario"]:
            if len(replay.runs) > 1:
                raise CommandError("--scenario writes one scenario: choose one with --workload.")
            self._write_json(options["scenario"], training.scenario_of(replay.runs[0]))
        players: list[training.Player] = []
        began_s = clock.monotonic_s()
        is_whole = True
        with self._bar(sum(len(run.jobs) for run in replay.runs), "jobs", options) as bar:
            try:
                for run in replay.runs:
                    bar.set_description(run.name)
                    players.append(training.Player(run, options["policy"], bar.update))
                    players[-1].play()
            except KeyboardInterrupt:
                is_whole = False
        seconds = clock.monotonic_s() - began_s
        parts = {
            player.run.name: training.measures(player, static_contention=replay.static_contention)
            for player in players
        }
        told = {
            **replay.told,
            "policy": options["policy"],
            "is_whole": is_whole,
            **training.together(list(parts.values())),
            "seconds": seconds,
            "reference": replay.reference if is_whole else None,
            "protocol": list(replay.protocol),
        }
        if len(parts) > 1:
            told["workloads"] = parts
        if options["starts"]:
            self._write_training_starts(options["starts"], players)
        self._tell(told, options["summary"])

    def _philly(self, path: Path, options: dict[str, Any]) -> training.Replay:
        with _opened(path / philly.FILE if path.is_dir() else path) as lines:
            return philly.replay_of(lines, n_gpus=options["gpus"], limit=options["limit"])

    def _pollux(self, path: Path, options: dict[str, Any]) -> training.Replay:
        load = options["load"]
        with (
            _opened(path / pollux.VALIDATION) as validation,
            _opened(path / pollux.PLACEMENTS) as placements,
            _opened(path / pollux.SCALABILITY) as scalability,
        ):
            applications = pollux.applications(validation, placements, scalability)
        reference = None
        with _opened(path / pollux.file_of(load)) as lines:
            requests = pollux.chosen(pollux.read_requests(lines), options["workload"])
            if (path / pollux.REFERENCE).exists():
                with _opened(path / pollux.REFERENCE) as rows:
                    reference = pollux.read_reference(rows, load, requests)
            if reference and (path / pollux.REFERENCE_JOBS).exists():
                with _opened(path / pollux.REFERENCE_JOBS) as rows:
                    pollux.add_reference_p99(reference, rows, load, requests)
            return pollux.replay_of(
                requests,
                applications,
                load=load,
                sizing=_sizing(options),
                limit=options["limit"],
                reference=reference,
            )

    def _sia(self, path: Path, options: dict[str, Any]) -> training.Replay:
        validation_path = options["validation"] or path.parent / FOLDERS["pollux"] / pollux.VALIDATION
        with (
            _opened(validation_path) as validation,
            _opened(path / sia.PLACEMENTS) as placements,
            _opened(path / sia.SCALABILITY) as scalability,
        ):
            applications = sia.applications(validation, placements, scalability)
        with _opened(path / sia.file_of(options["workloads"])) as lines:
            return sia.replay_of(
                pollux.chosen(pollux.read_requests(lines), options["workload"]),
                applications,
                workloads=options["workloads"],
                sizing=_sizing(options),
                limit=options["limit"],
            )

    def _gavel(self, path: Path, options: dict[str, Any]) -> training.Replay:
        trace = path / gavel.FILE if path.is_dir() else path
        with _opened(trace.parent / gavel.THROUGHPUTS) as table:
            throughputs = table.read()
        with _opened(trace) as lines:
            return gavel.replay_of(
                lines, throughputs, n_gpus=options["gpus"], vc=options["vc"], limit=options["limit"]
            )

    def _shockwave(self, path: Path, options: dict[str, Any]) -> training.Replay:
        trace = path
        if path.is_dir():
            # Of two with as many jobs the one with the same rate of arrivals as the others has the shorter name.
            found = sorted(
                path.glob(f"{options['jobs']}_*.trace.gz"), key=lambda file: (len(file.name), file.name)
            )
            if not found:
                raise CommandError(f"{path}: there is no trace of {options['jobs']} jobs")
            trace = found[0]
        reference = []
        if (trace.parent / shockwave.REFERENCE).exists():
            with _opened(trace.parent / shockwave.REFERENCE) as rows:
                reference = shockwave.read_reference(rows)
        throughputs = None
        if not options["fixed_batch"]:
            with _opened(trace.parent / shockwave.THROUGHPUTS) as table:
                throughputs = table.read()
        with _opened(trace) as lines:
            return shockwave.replay_of(
                lines, throughputs, n_gpus=options["gpus"], limit=options["limit"], reference=reference
            )

    def _write_training_starts(self, path: Path, players: list[training.Player]) -> None:
        try:
            with path.open("w", newline="") as out:
                writer = csv.writer(out, lineterminator="\n")
                writer.writerow(["workload", "job", "submit_s", "start_s", "end_s"])
                for player in players:
                    writer.writerows(
                        (
                            player.run.name,
                            one.job.name,
                            _plain(one.job.submit_s),
                            _plain(one.start_s),
                            _plain(one.end_s),
                        )
                        for one in training.ended_of(player)
                    )
        except OSError as error:
            raise CommandError(f"{path}: cannot be written: {error.strerror}") from error

    def _write_json(self, path: Path, data: Any) -> None:
        try:
            path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path}: cannot be written: {error.strerror}") from error

    def _bar(self, total: int | None, unit: str, options: dict[str, Any]) -> "tqdm[Any]":
        # tqdm draws to stderr, so that the report alone is on stdout; None: no bar where nobody looks.
        return tqdm(total=total, unit=f" {unit}", disable=None if options["verbosity"] else True)

    def _tell(self, told: dict[str, Any], path: Path | None) -> None:
        if path is not None:
            self._write_json(path, told)
        if not told["is_whole"]:
            self.stdout.write("Interrupted; this is what was done so far.")
        self.stdout.write("\n".join(_lines(told)))


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _lines(told: dict[str, Any]) -> Iterator[str]:
    """The report for a person: one fact a line, and of long lists one entry a line."""
    for key, value in told.items():
        if key in ("seeds", "workloads"):
            continue
        if isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {_short(entry)}" for entry in value)
        else:
            yield f"{key}: {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(entry)}" for key, entry in value.items())
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
