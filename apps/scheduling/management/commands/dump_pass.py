"""`manage.py dump_pass`: one pass as a file."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core import clock
from apps.core.errors import NotFound
from apps.scheduling import dump, dump_store


class Command(BaseCommand):
    help = (
        "Write a pass of the planner to a file, for `replay_pass`: one that was kept (refused passes are, and all "
        "others while the setting KEPT_DUMPS says so), or what a pass would see and decide now."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--pass", type=int, dest="pass_id", metavar="ID", help="default: the last one kept"
        )
        which.add_argument("--now", action="store_true", help="plan now, and write nothing but the file")
        parser.add_argument(
            "--without-names", action="store_true", help="leave out what people wrote: to be handed on"
        )
        parser.add_argument("out", type=Path, metavar="OUT.json.gz")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["now"]:
                found = dump_store.dump_now(clock.now())
            else:
                found = dump.from_bytes(dump_store.kept(options["pass_id"]))
        except (NotFound, dump.BadDump) as error:
            raise CommandError(str(error)) from error
        content = dump.to_bytes(dump.anonymous(found) if options["without_names"] else found)
        try:
            options["out"].write_bytes(content)
        except OSError as error:
            raise CommandError(f"{options['out']}: cannot be written: {error.strerror}") from error
        n_jobs = len(found.snapshot.queue) + len(found.snapshot.running)
        if options["verbosity"]:
            self.stdout.write(f"{options['out']}: {n_jobs} jobs, {len(content)} bytes")
