"""What `manage.py slurm` and `manage.py kubernetes` do alike: connect NAME, change NAME, sync NAME."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.errors import DomainError, OutsideError
from apps.execution.connections import Connected
from apps.inventory.models import Backend, Cluster


class ConnectCommand(BaseCommand):
    """A command that connects clusters of one kind."""

    kind: Backend
    word: str  # what stands behind such a cluster

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=["connect", "change", "sync"])
        parser.add_argument("name", help="of the cluster, here")

    def connect(self, given: dict[str, Any]) -> Connected:
        raise NotImplementedError

    def change(self, cluster: Cluster, given: dict[str, Any]) -> Connected:
        raise NotImplementedError

    def sync(self, cluster: Cluster, given: dict[str, Any]) -> Connected:
        raise NotImplementedError

    def handle(self, *args: Any, **given: Any) -> None:
        try:
            done = self._done(given)
        except (DomainError, OutsideError) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from error
        for note in done.notes:
            self.stdout.write(f"passed over: {note}")
        self.stdout.write(f"{done.cluster.name}: {self.word} {done.version}, {done.n_nodes} nodes taken in")

    def _done(self, given: dict[str, Any]) -> Connected:
        if given["what"] == "connect":
            return self.connect(given)
        cluster = Cluster.objects.filter(name=given["name"], backend=self.kind).first()
        if cluster is None:
            raise CommandError(f"There is no cluster {given['name']} behind a {self.word}.")
        return (self.change if given["what"] == "change" else self.sync)(cluster, given)


def text_of(path: Path | None) -> str:
    """What a file holds; nothing without one."""
    return path.read_text().strip() if path is not None else ""
