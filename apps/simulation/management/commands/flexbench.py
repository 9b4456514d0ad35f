"""How well power events are answered: mixes of work, signals and faults in virtual time."""

import json
import os
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from apps.simulation.flexbench import emerald
from apps.simulation.flexbench.rivals import WAYS
from apps.simulation.flexbench.run import (
    FAULTS,
    Figure,
    Tally,
    demonstration_figures,
    figures,
    optimiser_figures,
    play,
    scenes,
    tally,
)
from apps.simulation.flexbench.signals import SIGNALS

INTERRUPTED = 130
PROGRESS_S = 2.0
QUICK_SIGNAL = "25 % for 3 h"

Task = tuple[str, str, str, int, dict[str, Any], float]


def _played(task: Task) -> Tally:
    way, fault, signal, seed, scene, load_w = task
    seen = Tally()
    tally(seen, scene, signal, play(scene, way, FAULTS[fault], seed), load_w, FAULTS[fault])
    return seen


class Command(BaseCommand):
    """`manage.py flexbench`."""

    help = "Play power events over halls of work, and compare what was delivered and lost with other ways to answer."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--quick",
            action="store_true",
            help="at most two minutes: 256 devices, three seeds of every mix and signal without faults (ten random"
            " targets in six hours instead of 200 in five days); every fault and every rival with the first seed of"
            f" every mix and the signal {QUICK_SIGNAL!r}".replace("%", "%%"),
        )
        parser.add_argument(
            "--devices", type=int, default=256, help="256, 4096 or 16384; a multiple of 32 (256)"
        )
        parser.add_argument("--seeds", type=int, default=20, help="runs of each mix and signal (20)")
        parser.add_argument(
            "--compare-seeds", type=int, default=3, help="of these, so many with faults and by rivals too (3)"
        )
        parser.add_argument(
            "--signals", nargs="+", choices=sorted(SIGNALS), metavar="NAME", help="these alone (all seven)"
        )
        parser.add_argument("--processes", type=int, metavar="N", help="run so many at once (one a core)")
        parser.add_argument("--summary", type=Path, metavar="OUT.json", help="write the figures there too")

    def handle(self, *args: Any, **options: Any) -> None:
        n_devices = 256 if options["quick"] else options["devices"]
        if n_devices < 32 or n_devices % 32:
            raise CommandError("--devices must be a multiple of 32.")
        if not 1 <= options["seeds"] <= 1000:
            raise CommandError("--seeds must be from 1 to 1000.")
        if options["processes"] is not None and options["processes"] < 1:
            raise CommandError("--processes must be at least 1.")
        n_seeds = 3 if options["quick"] else options["seeds"]
        self._n_processes = options["processes"] or os.cpu_count()
        self._names = options["signals"] or list(SIGNALS)
        self._n_compared = 1 if options["quick"] else options["compare_seeds"]
        try:
            found = self._measure(
                n_devices, n_seeds, is_quick=options["quick"], is_quiet=options["verbosity"] == 0
            )
        except KeyboardInterrupt:
            raise CommandError("Interrupted; nothing was written.", returncode=INTERRUPTED) from None
        for figure in found:
            word = "" if figure.limit is None else ("ok" if figure.ok else "MISSED")
            sign = ">=" if figure.is_at_least else "<="
            bound = "" if figure.limit is None else f"{sign} {figure.limit:g}"
            spread = "" if figure.spread is None else f"+-{figure.spread:.2g}"
            self.stdout.write(f"{figure.name:96s} {figure.value:12.5g} {spread:10s} {bound:10s} {word}")
        if options["summary"] is not None:
            rows = [
                {"name": f.name, "value": f.value, "limit": f.limit, "ok": f.ok, "half_width_95": f.spread}
                for f in found
            ]
            options["summary"].write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")

    def _measure(self, n_devices: int, n_seeds: int, *, is_quick: bool, is_quiet: bool) -> list[Figure]:
        seen = {("switchyard", fault): Tally() for fault in FAULTS} | {(way, "none"): Tally() for way in WAYS}
        tasks = [
            (way, fault, signal, seed, scene, load_w)
            for _, signal, seed, scene, load_w in scenes(n_devices, n_seeds, is_quick=is_quick)
            for way, fault in seen
            # Of a quick look the rest is compared by one signal alone.
            if signal in self._names
            and (
                (way, fault) == ("switchyard", "none")
                or (seed < self._n_compared and (not is_quick or signal == QUICK_SIGNAL))
            )
        ]
        with ProcessPoolExecutor(self._n_processes) as pool:
            try:
                played = pool.map(_played, tasks, chunksize=1)
                for part, task in zip(
                    tqdm(played, total=len(tasks), unit=" runs", disable=is_quiet, mininterval=PROGRESS_S),
                    tasks,
                    strict=True,
                ):
                    seen[task[0], task[1]].add(part)
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        found = list(optimiser_figures(is_quick=is_quick))
        for (way, fault), tallied in seen.items():
            if tallied.n_runs:  # what was not played keeps no limit
                found.extend(figures(way, fault, tallied))
        folder = Path(settings.SWITCHYARD_TRACES) / emerald.FOLDER
        if folder.exists():
            found.extend(demonstration_figures(emerald.replay(emerald.read(folder))))
        elif not is_quiet:
            self.stderr.write(f"The published demonstration is not at {folder}; it is left out.")
        return found
