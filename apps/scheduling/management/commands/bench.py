"""`manage.py bench`: how fast it is on this machine, in a database that is thrown away."""

import json
import signal
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from apps.core import clock
from apps.core.embedded_postgres import PostgresFailed
from apps.scheduling.bench import planning, power, web
from apps.scheduling.bench.figures import Board
from apps.scheduling.bench.load import LoadFailed
from apps.scheduling.bench.planning import Bench, Size
from apps.scheduling.bench.server import BenchFailed, throw_away_server

Case = Callable[[Bench, Size, datetime], str]
CASES: Final[dict[str, Case]] = {
    "cold": planning.cold,
    "steady": planning.steady,
    "backlog": planning.backlog,
    "drain": planning.drain,
    "preempt": planning.preempt,
    "power": power.power,
    "submit": web.submit,
    "pages": web.pages,
}
_INCLUDED: Final = {"cold": "steady", "steady": "pages"}  # what another case measures on its way
SMALL: Final = Size(128, 1_000)
GROWTH: Final = (SMALL, Size(1_024, 10_000), Size(10_240, 100_000))
_INTERRUPTED: Final = 130


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no whole number") from None
    if not 128 <= number <= 1_000_000:
        raise ArgumentTypeError("must lie between 128 and 1,000,000")
    return number


class Command(BaseCommand):
    help = (
        "Measure planning, submission and pages over a synthetic facility, in a database that is thrown away. "
        "Without sizes: small ones; --growth goes from 128 to 10,240 nodes and from 1,000 to 100,000 jobs."
    )
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--case",
            choices=[*CASES, "all"],
            action="append",
            help="what to measure; may be given again (all)",
        )
        parser.add_argument(
            "--nodes", type=_positive, metavar="N", help=f"nodes of 8 devices ({SMALL.nodes})"
        )
        parser.add_argument("--queue", type=_positive, metavar="Q", help=f"jobs in the queue ({SMALL.queue})")
        parser.add_argument(
            "--growth", action="store_true", help="at three sizes, each about ten times the last"
        )
        parser.add_argument("--json", type=Path, metavar="OUT.json", help="write the figures there too")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["growth"] and (options["nodes"] or options["queue"]):
            raise CommandError("--growth brings its own sizes.")
        sizes = GROWTH if options["growth"] else (_size(options["nodes"], options["queue"]),)
        board = Board(tell=lambda line: self.stdout.write(line))
        # Whoever ends us by a signal finds nothing left behind either.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with throw_away_server() as server:
                bench = Bench(server, board, shows_progress=options["verbosity"] > 0)
                board.head()
                for size in sizes:
                    for case in _cases(options["case"] or ["all"]):
                        CASES[case](bench, size, clock.now())
        except KeyboardInterrupt:
            raise CommandError("Interrupted; the database is gone.", returncode=_INTERRUPTED) from None
        except (PostgresFailed, BenchFailed, LoadFailed) as error:
            raise CommandError(str(error)) from error
        finally:
            if options["json"] and board.figures:
                options["json"].write_text(json.dumps(board.as_json(), indent=1) + "\n", encoding="utf-8")


def _size(nodes: int | None, queue: int | None) -> Size:
    return Size(nodes or SMALL.nodes, queue or SMALL.queue)


def _cases(asked: list[str]) -> list[str]:
    wanted = list(CASES) if "all" in asked else [case for case in CASES if case in asked]
    return [case for case in wanted if not _is_included(case, wanted)]


def _is_included(case: str, wanted: list[str]) -> bool:
    wider = _INCLUDED.get(case)
    return wider is not None and (wider in wanted or _is_included(wider, wanted))


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
