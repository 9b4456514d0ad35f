"""Which mover carries what: the one place that knows all of them."""

from pathlib import Path
from typing import Final

from django.conf import settings

from apps.staging.movers.base import Mover
from apps.staging.movers.places import parse
from apps.staging.movers.process import ProcessMover
from apps.staging.movers.simulated import SimulatedMover

SIMULATED: Final = "simulated"
# By the schemes of source and target. Between two other machines nothing carries: neither end is within reach.
_BY_SCHEMES: Final = {
    ("file", "file"): "rsync",
    ("file", "ssh"): "rsync",
    ("ssh", "file"): "rsync",
    ("file", "s3"): "s3",
    ("s3", "file"): "s3",
    ("s3", "s3"): "s3",
}


def mover_for(source_uri: str, target_uri: str) -> str | None:
    """The name of the mover for two places; None when there is none."""
    return _BY_SCHEMES.get((parse(source_uri).scheme, parse(target_uri).scheme))


def mover_named(name: str) -> Mover:
    """The mover behind a name that a transfer keeps."""
    if name == SIMULATED:
        return SimulatedMover()
    if name == "s3":
        return ProcessMover(_spool(), "s3")
    assert name == "rsync", name
    return ProcessMover(_spool(), "rsync", rsh=settings.SWITCHYARD_RSH)


def prunable() -> tuple[ProcessMover | SimulatedMover, ...]:
    """All that keep something of moves that are over. Movers by processes share one spool."""
    return ProcessMover(_spool(), "rsync"), SimulatedMover()


def _spool() -> Path:
    return Path(settings.VAR_DIR) / "moves"
