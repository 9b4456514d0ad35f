"""`manage.py watchdog`: an alarm when power control is silent, a limit is passed, or a meter is not heard of."""

import logging
import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from apps.core import clock
from apps.core.presence import Presence
from apps.power.watchdog import EVERY_S, Watchdog

_log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Watch power control and the loads from a process of its own, until it is asked to stop."
    requires_system_checks: list[str] = []  # nothing that is broken elsewhere keeps it from watching

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="One look; says what is wrong, status 1 if so."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["once"]:
            self._once()
            return
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopping.set())
        presence = Presence(["watchdog"])
        presence.start()
        watchdog = Watchdog()
        while not stopping.is_set():
            try:
                watchdog.look(clock.now())
            except Exception:  # whatever it is, whoever watches has to go on watching
                _log.exception("The watchdog's look failed")
            stopping.wait(EVERY_S)
        presence.stop()

    def _once(self) -> None:
        found = Watchdog().look(clock.now())
        if found is None:
            raise SystemExit(2)
        for one in found.findings:
            self.stdout.write(f"{one.kind}: {one.message}")
        if found.findings:
            raise SystemExit(1)
        self.stdout.write("All is well.")
