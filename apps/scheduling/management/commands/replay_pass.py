"""`manage.py replay_pass`: plan a dumped pass again. No database."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core import clock
from apps.scheduling import dump
from apps.scheduling.engine import checker, planner
from apps.scheduling.engine.facts import Plan

BAD_FILE, DIFFERS = 2, 1


class Command(BaseCommand):
    """Says whether this version decides the same, and what the checker says of it."""

    help = (
        "Plan a pass again that was written by `dump_pass`. Needs no database. Exit status 0: the plan is the same; "
        "1: it is another one; 2: the file cannot be read."
    )
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")

    def handle(self, *args: Any, **options: Any) -> None:
        path = options["file"]
        try:
            found = dump.from_bytes(path.read_bytes())
        except OSError as error:
            raise CommandError(f"{path}: cannot be read: {error.strerror}", returncode=BAD_FILE) from error
        except dump.BadDump as error:
            raise CommandError(f"{path}: {error}", returncode=BAD_FILE) from error
        began_s = clock.monotonic_s()
        plan = planner.plan(found.snapshot, found.policy)
        took_s = clock.monotonic_s() - began_s
        faults = checker.check(found.snapshot, plan, found.policy)
        changed = dump.differences(found, plan)
        if options["verbosity"]:
            self._tell(found, plan, took_s)
            for fault in faults:
                self.stdout.write(f"  {fault.rule}: {fault.message}")
            self.stdout.write("The plan is another one:" if changed else "The plan is the same.")
            for line in changed:
                self.stdout.write(f"  {line[:1000]}")
        if changed:
            sys.exit(DIFFERS)

    def _tell(self, found: dump.Dump, plan: Plan, took_s: float) -> None:
        snapshot, about = found.snapshot, found.about
        name = "A pass" if about.get("pass_id") is None else f"Pass {about['pass_id']}"
        self.stdout.write(
            f"{name} of {about.get('at', 'some time')}: {snapshot.facility.n_nodes} nodes, "
            f"{len(snapshot.running)} running jobs, {len(snapshot.queue)} waiting"
        )
        counts = {
            "starts": plan.starts,
            "evictions": plan.evictions,
            "resizes": plan.resizes,
            "transfers": plan.stages,
            "promises": plan.reserves,
            "waits": plan.waits,
        }
        told = ", ".join(f"{len(part)} {name}" for name, part in counts.items())
        self.stdout.write(f"planned in {took_s:.3f} s: {told}")
