"""Stores, copies and a clock for the tests of what brings data to where it is wanted."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from apps.events.models import Event
from apps.inventory.models import Domain
from apps.inventory.tests.builders import domain
from apps.staging import loop, services
from apps.staging.models import Copy, Dataset, Store, Transfer
from apps.staging.movers.fake import FakeMover
from apps.teams.tests.builders import NOON


@dataclass
class Scene:
    """A data set with one copy, a place where it is wanted, and a mover that does as it is told."""

    dataset: Dataset
    near: Domain
    far: Domain
    root: Path
    mover: FakeMover = field(default_factory=FakeMover)

    def ask(self, at_s: float = 0.0, **more: Any) -> Transfer | None:
        asked = {"dataset_id": self.dataset.pk, "to_domain_id": self.near.pk, "for_job_id": 7, **more}
        return services.request_stage(**asked, at=later(at_s))

    def move(self, at_s: float = 0.0) -> None:
        loop.move_all(at=later(at_s))

    def transfer(self) -> Transfer:
        return Transfer.objects.select_related("dataset").latest("id")

    def is_there(self) -> bool:
        return Copy.objects.filter(dataset=self.dataset, domain=self.near).exists()

    def events(self, kind: str) -> list[Event]:
        return list(Event.objects.filter(kind=f"dataset.{kind}").order_by("id"))


def later(seconds: float) -> Any:
    return NOON + timedelta(seconds=seconds)


def store(of: Domain, base_uri: str, rate_gib_per_s: float = 1.0, **more: Any) -> Store:
    return services.create_store(
        domain=of.name, base_uri=base_uri, rate_gib_per_s=rate_gib_per_s, actor=None, at=NOON, **more
    )


def scene(root: Path, size_gib: float = 100.0) -> Scene:
    far, near = domain("far", "storage"), domain("near", "storage")
    for place in (far, near):
        (root / place.name).mkdir(parents=True)
        store(place, str(root / place.name))
    dataset = services.create_dataset(
        name="imagenet", size_gib=size_gib, at_domains=["far"], actor=None, at=NOON
    )
    return Scene(dataset, near, far, root)
