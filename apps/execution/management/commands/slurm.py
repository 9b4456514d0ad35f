"""`manage.py slurm connect|change NAME ...` and `manage.py slurm sync NAME`: a cluster behind a Slurm."""

import base64
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from apps.core import clock
from apps.execution.connections import Connected, SlurmDraft, change_slurm, connect_slurm, sync_slurm
from apps.execution.management.connecting import ConnectCommand, text_of
from apps.execution.slurm_models import SlurmCredential
from apps.inventory.models import Backend, Cluster


class Command(ConnectCommand):
    help = "Connect a Slurm as a cluster, or look at one again now."
    kind = Backend.SLURM
    word = "Slurm"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
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

    def connect(self, given: dict[str, Any]) -> Connected:
        return connect_slurm(name=given["name"], draft=_draft(given), actor=None, at=clock.now())

    def change(self, cluster: Cluster, given: dict[str, Any]) -> Connected:
        return change_slurm(cluster=cluster, draft=_draft(given), actor=None, at=clock.now())

    def sync(self, cluster: Cluster, given: dict[str, Any]) -> Connected:
        return sync_slurm(cluster=cluster, accelerator=given["accelerator"], actor=None, at=clock.now())


def _draft(given: dict[str, Any]) -> SlurmDraft:
    if bool(given["key_file"]) == bool(given["token_file"]):
        raise CommandError("Name --key-file or --token-file.")
    if given["key_file"]:
        credential = SlurmCredential.KEY
        secret = base64.b64encode(given["key_file"].read_bytes()).decode()
    else:
        credential, secret = SlurmCredential.TOKEN, text_of(given["token_file"])
    return SlurmDraft(
        rest_url=given["url"],
        user_name=given["user"],
        secret=secret,
        credential=credential,
        shared_dir=given["shared_dir"],
        partition=given["partition"],
        slurm_conf=given["slurm_conf"],
        accelerator=given["accelerator"],
    )
