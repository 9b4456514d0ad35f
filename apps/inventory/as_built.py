"""The facility as built, as people write it: the ground of REST and of facility files."""

from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.strict import AddressName, Cores, Gib, Name, Number, SecondsOrZero, Strict, Watts, WattsOrZero

Kind = Literal["spine", "leaf", "scale_up", "facility", "hall", "row", "rack", "cooling", "storage"]
Speed = Annotated[Number, Field(gt=0, le=1e6)]
Share = Annotated[Number, Field(gt=0, le=1)]


class AcceleratorTypeIn(Strict):
    name: AddressName
    tdp_w: Watts
    memory_gib: Gib = 0.0
    idle_w: WattsOrZero | None = None
    speed: Speed = 1.0
    power_curve: (
        Annotated[
            list[Annotated[list[Share], Field(min_length=2, max_length=2)]],
            Field(min_length=1, max_length=100),
        ]
        | None
    ) = None
    cap_step_w: Watts | None = None
    cap_settle_s: SecondsOrZero = 10.0


class DomainIn(Strict):
    name: AddressName
    kind: Kind
    parent: Name | None = None


class ClusterIn(Strict):
    name: AddressName
    backend: Literal["local", "simulated", "slurm", "kubernetes"]
    config: dict[str, Any] = Field(default_factory=dict)


class NodeIn(Strict):
    name: AddressName
    cluster: Name
    accelerator_type: Name
    n_devices: Annotated[int, Field(ge=1, le=1024)]
    cpus: Cores | None = None
    memory_gib: Gib | None = None
    scale_up: Name | None = None
    leaf: Name | None = None
    power: Name | None = None
    cooling: Name | None = None
    storage: Name | None = None
    idle_w: WattsOrZero = 0.0
    speed: Speed = 1.0
