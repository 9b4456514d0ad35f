"""Secrets of others, sealed: the database, its backups and its readers hold nothing that opens anything.

The key follows from the site's SECRET_KEY. Who changes that names the old one in SECRET_KEY_FALLBACKS, or enters the
secrets anew.
"""

import base64
import hashlib
from dataclasses import dataclass

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class Unreadable(Exception):
    """A sealed secret that the keys of this site do not open."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What one kind of secret is sealed with.

    Attributes:
        purpose: Keeps its key apart from all else that the site's key signs and seals; 16 bytes of it count.
    """

    purpose: bytes

    def seal(self, secret: str) -> str:
        return self._box().encrypt(secret.encode()).decode()

    def unseal(self, sealed: str) -> str:
        """The secret; raises Unreadable."""
        try:
            return self._box().decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise Unreadable from None

    def _box(self) -> MultiFernet:
        keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
        return MultiFernet([Fernet(self._derived(str(key))) for key in keys])

    def _derived(self, key: str) -> bytes:
        # A long random key needs no slow derivation.
        digest = hashlib.blake2b(key.encode(), digest_size=32, person=self.purpose[:16]).digest()
        return base64.urlsafe_b64encode(digest)
