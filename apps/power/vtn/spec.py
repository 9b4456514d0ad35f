"""A connection as it is asked for, the same by REST and by form: taken as it is meant, or refused field by field."""

from typing import Annotated, Literal

from pydantic import Field

from apps.core.strict import AddressName, Name, Strict, Text
from apps.power.openadr_models import LEAST_POLL_S, LONGEST_POLL_S, MOST_SILENT_S
from apps.power.vtn.services import MOST_PARTS, ConnectionDraft, ProgrammeMap, ResourceDraft

ProtocolWord = Literal["3.0.1", "3.1.0"]
UnitsWord = Literal["", "W", "KW", "MW"]
OutsideName = Annotated[Name, Field(max_length=128)]
ObjectId = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
Address = Annotated[Text, Field(max_length=500)]
Secret = Annotated[
    Text,
    Field(min_length=1, max_length=1000, description="Write-only.", json_schema_extra={"writeOnly": True}),
]


class ResourceSpec(Strict):
    name: OutsideName
    domain: Name

    def draft(self) -> ResourceDraft:
        return ResourceDraft(name=self.name, domain=self.domain)


class ProgrammeMapSpec(Strict):
    """`default_units` of power without units (empty: such events are refused); `has_fallback`: the subscribed import
    capacity binds while the server is silent and no limit is left."""

    external_id: ObjectId
    programme: Name
    default_units: UnitsWord = "KW"
    is_shed_negative: bool = False
    is_test: bool = False
    test_marker: Annotated[Text, Field(max_length=50)] = ""
    has_fallback: bool = False

    def draft(self) -> ProgrammeMap:
        return ProgrammeMap(**self.model_dump())


class ConnectionSpec(Strict):
    """`client_secret` may be left out where one is stored and no address changes."""

    name: AddressName
    base_url: Address
    protocol: ProtocolWord = "3.1.0"
    token_url: Address = ""
    client_id: Annotated[Name, Field(max_length=200)]
    client_secret: Secret | None = None
    scope: Annotated[Text, Field(max_length=200)] = ""
    ven_name: OutsideName
    domain: Name
    poll_s: Annotated[int, Field(ge=LEAST_POLL_S, le=LONGEST_POLL_S)] = 60
    silent_after_s: Annotated[int, Field(ge=LEAST_POLL_S, le=MOST_SILENT_S)] = 300
    is_enabled: bool = False
    resources: Annotated[list[ResourceSpec], Field(max_length=MOST_PARTS)] = []
    programmes: Annotated[list[ProgrammeMapSpec], Field(max_length=MOST_PARTS)] = []

    def draft(self) -> ConnectionDraft:
        plain = ConnectionSpec.model_fields.keys() - {"resources", "programmes"}
        return ConnectionDraft(
            **{name: getattr(self, name) for name in plain},
            resources=tuple(one.draft() for one in self.resources),
            programmes=tuple(one.draft() for one in self.programmes),
        )
