"""Client secrets, sealed: the database, its backups and its readers hold nothing that opens a VTN.

The key follows from the site's SECRET_KEY. Who changes that names the old one in SECRET_KEY_FALLBACKS, or enters the
secrets anew.
"""

import base64
import hashlib
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

_PURPOSE: Final = b"switchyard openadr client secret"


class Unreadable(Exception):
    """A sealed secret that the keys of this site do not open."""


def seal(secret: str) -> str:
    return _box().encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    """The secret; raises Unreadable."""
    try:
        return _box().decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise Unreadable from None


def _box() -> MultiFernet:
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_derived(str(key))) for key in keys])


def _derived(key: str) -> bytes:
    # A long random key needs no slow derivation; the purpose keeps it apart from all else that the key signs.
    digest = hashlib.blake2b(key.encode(), digest_size=32, person=_PURPOSE[:16]).digest()
    return base64.urlsafe_b64encode(digest)
