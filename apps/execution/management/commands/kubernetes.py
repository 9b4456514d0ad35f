"""`manage.py kubernetes connect|change|sync NAME ...`: a cluster behind a Kubernetes."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from apps.core import clock
from apps.execution.connections import (
    Connected,
    KubernetesDraft,
    change_kubernetes,
    connect_kubernetes,
    sync_kubernetes,
)
from apps.execution.management.connecting import ConnectCommand, text_of
from apps.inventory.models import Backend, Cluster


class Command(ConnectCommand):
    help = "Connect a Kubernetes as a cluster, or look at one again now."
    kind = Backend.KUBERNETES
    word = "Kubernetes"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--url", default="", help="of the API server")
        parser.add_argument("--token-file", type=Path, help="the token of a ServiceAccount")
        parser.add_argument(
            "--ca-file", type=Path, help="whom to believe; by default whom this machine believes"
        )
        parser.add_argument("--namespace", default="switchyard")
        parser.add_argument("--image", default="", help="what jobs run in")
        parser.add_argument("--resource", default="nvidia.com/gpu", help="name of the devices")
        parser.add_argument(
            "--label",
            action="append",
            default=[],
            metavar="WHAT=KEY[,KEY]",
            help="node labels that tell accelerator, leaf or spine, from near to far",
        )
        parser.add_argument("--accelerator", default="", help="what devices are where no label says")

    def connect(self, given: dict[str, Any]) -> Connected:
        return connect_kubernetes(name=given["name"], draft=_draft(given), actor=None, at=clock.now())

    def change(self, cluster: Cluster, given: dict[str, Any]) -> Connected:
        return change_kubernetes(cluster=cluster, draft=_draft(given), actor=None, at=clock.now())

    def sync(self, cluster: Cluster, given: dict[str, Any]) -> Connected:
        return sync_kubernetes(cluster=cluster, accelerator=given["accelerator"], actor=None, at=clock.now())


def _draft(given: dict[str, Any]) -> KubernetesDraft:
    if given["token_file"] is None:
        raise CommandError("Name --token-file.")
    labels = {}
    for one in given["label"]:
        what, is_said, keys = one.partition("=")
        if not is_said or not keys:
            raise CommandError(f"--label {one}: say WHAT=KEY.")
        labels[what] = keys.split(",")
    return KubernetesDraft(
        api_url=given["url"],
        token=text_of(given["token_file"]),
        ca_pem=text_of(given["ca_file"]),
        namespace=given["namespace"],
        image=given["image"],
        resource=given["resource"],
        labels=labels,
        accelerator=given["accelerator"],
    )
