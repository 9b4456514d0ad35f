"""`manage.py simulate`: a scenario file through the real engine in virtual time. No database, no broker."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from apps.core import clock
from apps.simulation import report
from apps.simulation.loop import Engine, simulate
from apps.simulation.scenario import ScenarioError, read_scenario
from apps.simulation.unsupported import unsupported_in
from apps.simulation.world import build_world

BAD_SCENARIO, NOT_SUPPORTED, INTERRUPTED = 2, 3, 130


class Command(BaseCommand):
    """Runs a scenario and writes its events and its summary."""

    help = "Run a scenario file through the real planning engine in virtual time. Needs no database."
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("scenario", type=Path, metavar="SCENARIO.json")
        parser.add_argument(
            "--events", type=Path, metavar="OUT.jsonl", help="one JSON object a line, in time order"
        )
        parser.add_argument("--summary", type=Path, metavar="OUT.json", help="jobs, metrics, losses, engine")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            raw = options["scenario"].read_bytes()
        except OSError as error:
            self._refuse([f"{options['scenario']}: cannot be read: {error.strerror}"], BAD_SCENARIO)
        try:
            scenario = read_scenario(raw)
        except ScenarioError as error:
            self._refuse([str(fault) for fault in error.faults], BAD_SCENARIO)
        missing = unsupported_in(scenario)
        if missing:
            self._refuse([f"not supported yet: {name}" for name in missing], NOT_SUPPORTED)
        quiet = None if options["verbosity"] else True  # None: no bar where nobody looks
        with tqdm(total=len(scenario.jobs), unit=" jobs", disable=quiet) as bar:
            try:
                engine = Engine(stopwatch=clock.monotonic_s, on_end=bar.update)
                outcome = simulate(build_world(scenario), engine)
            except KeyboardInterrupt:
                raise CommandError("Interrupted; nothing was written.", returncode=INTERRUPTED) from None
        try:
            if options["events"]:
                options["events"].write_text(report.events_text(outcome), encoding="utf-8")
            if options["summary"]:
                options["summary"].write_text(report.summary_text(outcome), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{error.filename}: cannot be written: {error.strerror}") from error
        if options["verbosity"]:
            self.stdout.write(report.for_people(outcome))

    def _refuse(self, lines: list[str], status: int) -> None:
        for line in lines:
            self.stderr.write(line)
        sys.exit(status)
