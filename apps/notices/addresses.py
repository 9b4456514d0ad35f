"""Webhooks as they are stored."""

from typing import Final

from apps.core.sealing import Seal

SEAL: Final = Seal(b"switchyard notice webhooks")  # the first 16 bytes: "switchyard notic"
