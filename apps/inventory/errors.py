"""What the facility refuses."""

from apps.core.errors import DomainError


class NodeInUse(DomainError):
    code = "node_in_use"


class NodeUnfit(DomainError):
    """The node can not do this in the health it is in."""

    code = "node_unfit"
