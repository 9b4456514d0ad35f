"""`manage.py simulate`: a scenario file, or the present, through the real engine in virtual time.

A file needs no database and no broker; the present is read from the database, and nothing is ever written there.
"""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.scheduling.live_scenario import LiveScenario, live_scenario
from apps.simulation import report, side_by_side
from apps.simulation.changes import read_changes
from apps.simulation.loop import Engine, simulate
from apps.simulation.scenario import Fault, Scenario, ScenarioError, read_scenario
from apps.simulation.whatif import BASE, PASS_INTERVAL_S, Comparison, compare, paced
from apps.simulation.world import build_world

BAD_SCENARIO, INTERRUPTED = 2, 130


class Command(BaseCommand):
    """Runs a scenario and writes its events and its summary; with changes, both beside each other."""

    help = (
        "Run a scenario file through the real planning engine in virtual time. Needs no database. With --from-live: "
        "what stands, runs and waits now. With --change: as it is and as it would be, side by side."
    )
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("scenario", type=Path, metavar="SCENARIO.json", nargs="?")
        parser.add_argument(
            "--from-live", action="store_true", help="begin from the present state of this site"
        )
        parser.add_argument(
            "--cluster", action="append", default=[], metavar="NAME", help="of the present, only this cluster"
        )
        parser.add_argument(
            "--change",
            action="append",
            default=[],
            type=Path,
            metavar="CHANGE.json",
            help="what would be different: an object or a list, as apps/simulation/changes.py says",
        )
        parser.add_argument(
            "--every",
            type=float,
            default=PASS_INTERVAL_S,
            metavar="S",
            help="of the present: seconds from pass to pass; 0: a pass at every change (default: %(default)g)",
        )
        parser.add_argument("--until", type=float, metavar="S", help="stop after so many seconds")
        parser.add_argument("--side-by-side", action="store_true", help="show each waiting job too")
        parser.add_argument(
            "--events", type=Path, metavar="OUT.jsonl", help="one JSON object a line, in time order"
        )
        parser.add_argument("--summary", type=Path, metavar="OUT.json", help="jobs, metrics, losses, engine")
        parser.add_argument(
            "--save-scenario", type=Path, metavar="OUT.json", help="the present as a scenario file"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if (options["scenario"] is None) != options["from_live"]:
            raise CommandError("Give either SCENARIO.json or --from-live.")
        if not options["from_live"] and (options["cluster"] or options["save_scenario"]):
            raise CommandError("--cluster and --save-scenario go with --from-live.")
        if options["until"] is not None and not 0 <= options["until"] <= 1e10:
            raise CommandError("--until must be from 0 to 10000000000 seconds.")
        if not 0 <= options["every"] <= 1e10:
            raise CommandError("--every must be from 0 to 10000000000 seconds.")
        is_plain = not (options["from_live"] or options["change"] or options["side_by_side"])
        try:
            if is_plain and options["until"] is None:
                self._simulate(options)
            else:
                self._compare(options)
        except KeyboardInterrupt:
            raise CommandError("Interrupted; nothing was written.", returncode=INTERRUPTED) from None
        except ScenarioError as error:
            self._refuse([str(fault) for fault in error.faults], BAD_SCENARIO)

    # A file alone

    def _simulate(self, options: dict[str, Any]) -> None:
        scenario = self._read(options["scenario"])
        with tqdm(total=len(scenario.jobs), unit=" jobs", disable=self._is_quiet(options)) as bar:
            engine = Engine(stopwatch=clock.monotonic_s, on_end=bar.update)
            outcome = simulate(build_world(scenario), engine)
        self._write(options["events"], report.events_text, outcome)
        self._write(options["summary"], report.summary_text, outcome)
        if options["verbosity"]:
            self.stdout.write(report.for_people(outcome))

    def _read(self, path: Path) -> Scenario:
        return read_scenario(self._bytes(path))

    # Side by side

    def _compare(self, options: dict[str, Any]) -> None:
        changes = [change for path in options["change"] for change in self._changes(path)]
        read_changes(changes)  # before anything is read that takes its time
        live = self._live(options) if options["from_live"] else None
        if live is None:
            self._read(options["scenario"])  # every fault of the file, as without changes
            scenario = json.loads(self._bytes(options["scenario"]))
        else:
            scenario = paced(live.scenario, options["every"])
            self._write(options["save_scenario"], _as_text, scenario)
        with _Bars(self._is_quiet(options)) as bars:
            comparison = compare(
                scenario,
                changes,
                until=options["until"],
                on_progress=bars.show,
                at=None if live is None else live.at,
                live=None if live is None else live.jobs,
                assumptions=None if live is None else live.assumptions,
            )
        last = comparison.what_if or comparison.base
        self._write(options["events"], report.events_text, last.outcome)
        self._write(options["summary"], _comparison_text, comparison)
        if options["verbosity"]:
            most = None if options["verbosity"] > 1 else side_by_side.MOST_JOBS
            self.stdout.write(side_by_side.told(comparison, jobs=options["side_by_side"], most_jobs=most))

    def _live(self, options: dict[str, Any]) -> LiveScenario:
        try:
            return live_scenario(clock.now(), clusters=options["cluster"])
        except InvalidInput as error:
            raise CommandError(str(error), returncode=BAD_SCENARIO) from error

    def _changes(self, path: Path) -> list[Any]:
        try:
            found = json.loads(self._bytes(path), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ScenarioError([Fault(str(path), f"is not JSON: {error}")]) from None
        return found if isinstance(found, list) else [found]

    # Files

    def _bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise ScenarioError([Fault(str(path), f"cannot be read: {error.strerror}")]) from None

    def _write(self, path: Path | None, text_of: Any, what: Any) -> None:
        if path is None:
            return
        try:
            path.write_text(text_of(what), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{error.filename}: cannot be written: {error.strerror}") from error

    def _is_quiet(self, options: dict[str, Any]) -> bool | None:
        return None if options["verbosity"] else True  # None: no bar where nobody looks

    def _refuse(self, lines: list[str], status: int) -> None:
        for line in lines:
            self.stderr.write(line)
        sys.exit(status)


class _Bars:
    """One bar a run."""

    def __init__(self, quiet: bool | None) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._which = ""

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, which: str, n_ended: int, n_jobs: int) -> None:
        if which != self._which:
            if self._bar is not None:
                self._bar.close()
            self._which = which
            name = "base" if which == BASE else "what if"
            self._bar = tqdm(total=n_jobs, unit=" jobs", desc=name, disable=self._quiet)
        self._bar.update(n_ended - self._bar.n)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _comparison_text(comparison: Comparison) -> str:
    return _as_text(comparison.as_json())
