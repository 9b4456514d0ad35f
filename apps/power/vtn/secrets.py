"""Client secrets of VTNs, sealed."""

from typing import Final

from apps.core.sealing import Seal, Unreadable

__all__ = ["Unreadable", "seal", "unseal"]

_SEAL: Final = Seal(b"switchyard openadr client secret")

seal = _SEAL.seal
unseal = _SEAL.unseal
