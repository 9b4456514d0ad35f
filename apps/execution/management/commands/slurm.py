"""`manage.py slurm connect|change NAME ...` and `manage.py slurm sync NAME`: a cluster behind a Slurm."""

import base64
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core import clock
from apps.core.errors import DomainError, OutsideError
from apps.execution.connections import Connected, SlurmDraft, change_slurm, connect_slurm, sync_slurm
from apps.execution.slurm_models import SlurmCredential
from apps.inventory.models import Backend, Cluster


class Command(BaseCommand):
    help = "Connect a Slurm as a cluster, or look at one again now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=["connect", "change", "sync"])
        parser.add_argument("name", help="of the cluster, here")
        parser.add_argument("--url", default="", help="of slurmrestd")
        parser.add_argument("--user", default="", help="whose jobs they are; an operator of Slurm")
        parser.add_argument("--key-file", type=Path, help="jwt_key of Slurm")
        parser.add_argument("--token-file", type=Path, help="a token, where the key is not to be had")
        parser.add_argument("--shared-dir", default="", help="seen by the site and by every node")
        parser.add_argument("--slurm-conf", default="", help="of the commands; by default Slurm's own")
        parser.add_argument("--partition", default="")
        parser.add_argument(
            "--accelerator", default="", help="what devices are that Slurm has no one type for"
        )

    def handle(self, *args: Any, **given: Any) -> None:
        try:
            done = self._sync(given) if given["what"] == "sync" else self._connect(given)
        except (DomainError, OutsideError) as error:
            raise CommandError(str(error)) from error
        for note in done.notes:
            self.stdout.write(f"passed over: {note}")
        self.stdout.write(f"{done.cluster.name}: Slurm {done.version}, {done.n_nodes} nodes taken in")

    @staticmethod
    def _connect(given: dict[str, Any]) -> Connected:
        if bool(given["key_file"]) == bool(given["token_file"]):
            raise CommandError("Name --key-file or --token-file.")
        try:
            if given["key_file"]:
                credential = SlurmCredential.KEY
                secret = base64.b64encode(given["key_file"].read_bytes()).decode()
            else:
                credential, secret = SlurmCredential.TOKEN, given["token_file"].read_text().strip()
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from error
        draft = SlurmDraft(
            rest_url=given["url"],
            user_name=given["user"],
            secret=secret,
            credential=credential,
            shared_dir=given["shared_dir"],
            partition=given["partition"],
            slurm_conf=given["slurm_conf"],
            accelerator=given["accelerator"],
        )
        if given["what"] == "connect":
            return connect_slurm(name=given["name"], draft=draft, actor=None, at=clock.now())
        return change_slurm(cluster=_named(given["name"]), draft=draft, actor=None, at=clock.now())

    @staticmethod
    def _sync(given: dict[str, Any]) -> Connected:
        cluster, word = _named(given["name"]), given["accelerator"]
        return sync_slurm(cluster=cluster, accelerator=word, actor=None, at=clock.now())


def _named(name: str) -> Cluster:
    cluster = Cluster.objects.filter(name=name, backend=Backend.SLURM).first()
    if cluster is None:
        raise CommandError(f"There is no cluster {name} behind a Slurm.")
    return cluster
