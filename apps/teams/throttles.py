"""How often somebody may try: signing in, wrong tokens, previews. Counted in the database, for all web workers.

Failed sign-ins make the next one wait, each longer than the one before. They are counted three ways: of an account
from one address, of an account from anywhere, and of an address. The last two wait a minute at most, so that nobody
keeps others out for long; and a browser that signed in to an account before is counted by itself, so that it gets in
while somebody else guesses. Whether an account exists makes no difference.
"""

import ipaddress
import math
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.core import signing
from django.db import connection, transaction
from django.utils.crypto import salted_hmac

from apps.teams.models import Tally

_FORGOTTEN_AFTER: Final = timedelta(hours=1)
_KEPT: Final = timedelta(days=1)
_FIRST_WAIT_S: Final = 5.0
_LONGEST_SHARED_WAIT_S: Final = 60.0
_MOST: Final = 1_000_000
_NONCE: Final = 16


@dataclass(frozen=True, slots=True)
class _Count:
    """One counter, how many failures it bears without a wait, and how long a wait may get."""

    key: str
    n_free: int
    longest_s: float

    def wait_s(self, n: int) -> float:
        if n < self.n_free:
            return 0.0
        return float(min(self.longest_s, _FIRST_WAIT_S * 2 ** min(n - self.n_free, 30)))


class SignIn:
    """One attempt to sign in.

    Args:
        device: What device_of() gave this browser the last time it signed in, if it ever did.
    """

    def __init__(self, *, username: str, address: str, device: str = "") -> None:
        self._username = username[:150]
        n_free, longest_s = settings.SWITCHYARD_SIGN_IN_FAILURES, settings.SWITCHYARD_SIGN_IN_LONGEST_WAIT_S
        self._own: tuple[_Count, ...] = ()
        self._shared: tuple[_Count, ...] = ()
        if nonce := _nonce_in(device, self._username):
            self._own = (_Count(_key("device", self._username, nonce), n_free, longest_s),)
            return
        network = _network(address)
        self._own = (
            _Count(_key("account-address", self._username, network), n_free, longest_s),
            _Count(_key("account", self._username), 2 * n_free, _LONGEST_SHARED_WAIT_S),
        )
        if n_shared := settings.SWITCHYARD_SIGN_IN_FAILURES_PER_ADDRESS:
            self._shared = (_Count(_key("address", network), n_shared, _LONGEST_SHARED_WAIT_S),)

    @transaction.atomic
    def begin(self, *, at: datetime) -> float:
        """Seconds to wait before the password is looked at at all; 0: go on.

        An attempt counts as failed until succeeded() takes it back: many at once get no further than one by one.
        """
        if not settings.SWITCHYARD_SIGN_IN_FAILURES:
            return 0.0
        counts = {count.key: count for count in (*self._own, *self._shared)}
        rows = Tally.objects.select_for_update().filter(key__in=counts, last_at__gt=at - _FORGOTTEN_AFTER)
        waits = [
            counts[row.key].wait_s(row.n) - (at - row.last_at).total_seconds() for row in rows.order_by("key")
        ]
        if (left_s := max(waits, default=0.0)) > 0:
            return left_s
        for key in sorted(counts):
            _count(key, at=at, forgotten_before=at - _FORGOTTEN_AFTER, by_last=True)
        return 0.0

    @transaction.atomic
    def succeeded(self) -> None:
        keys = [count.key for count in (*self._own, *self._shared)]
        list(Tally.objects.select_for_update().filter(key__in=keys).order_by("key"))  # in begin()'s order
        Tally.objects.filter(key__in=[count.key for count in self._own]).delete()
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE teams_tally SET n = n - 1 WHERE key = ANY(%s) AND n > 0",
                [[count.key for count in self._shared]],
            )

    def device_of(self) -> str:
        """What the browser keeps, so that it is known the next time; good for this account alone."""
        return signing.dumps([_key("device", self._username), secrets.token_hex(_NONCE)], salt="device")


def take(kind: str, subject: object, *, most: int, per_s: float, at: datetime) -> float:
    """Count one more of these, at most so many in each window of so many seconds; 0 `most` is no limit.

    Returns:
        Seconds to wait, if it is one too many; else 0.
    """
    if not most:
        return 0.0
    since = at - timedelta(seconds=per_s)
    n, since_at = _count(_key(kind, str(subject)), at=at, forgotten_before=since, by_last=False)
    return max(0.001, (since_at - since).total_seconds()) if n > most else 0.0


def note_wrong_token(address: str, at: datetime) -> float:
    """Count a token that nobody has; seconds to wait where there were too many from there."""
    most = settings.SWITCHYARD_WRONG_TOKENS_PER_MINUTE
    return take("wrong-token", _network(address), most=most, per_s=60.0, at=at)


def take_preview(user_id: int, at: datetime) -> float:
    """Count a preview, each of which is a run of the planner; seconds to wait where there were too many."""
    return take("preview", user_id, most=settings.SWITCHYARD_PREVIEWS_PER_MINUTE, per_s=60.0, at=at)


def prune(*, at: datetime) -> int:
    """Forget what counts no more."""
    n_deleted, _ = Tally.objects.filter(last_at__lt=at - _KEPT).delete()
    return n_deleted


def in_words(wait_s: float) -> str:
    seconds = math.ceil(wait_s)
    if seconds < 90:
        return f"{seconds} {'second' if seconds == 1 else 'seconds'}"
    return f"{math.ceil(seconds / 60)} minutes"


_COUNT: Final = """
INSERT INTO teams_tally AS kept (key, n, since_at, last_at) VALUES (%(key)s, 1, %(at)s, %(at)s)
ON CONFLICT (key) DO UPDATE SET
    last_at = excluded.last_at,
    n = CASE WHEN (CASE WHEN %(by_last)s THEN kept.last_at ELSE kept.since_at END) <= %(before)s
        THEN 1 ELSE least(kept.n + 1, %(most)s) END,
    since_at = CASE WHEN (CASE WHEN %(by_last)s THEN kept.last_at ELSE kept.since_at END) <= %(before)s
        THEN excluded.since_at ELSE kept.since_at END
RETURNING n, since_at
"""


def _count(key: str, *, at: datetime, forgotten_before: datetime, by_last: bool) -> tuple[int, datetime]:
    """One more, beginning anew where the last (or the first) was too long ago; how many, and since when."""
    with connection.cursor() as cursor:
        cursor.execute(
            _COUNT, {"key": key, "at": at, "by_last": by_last, "before": forgotten_before, "most": _MOST}
        )
        n, since_at = cursor.fetchone()
    return n, since_at


def _key(*words: str) -> str:
    # People type passwords where names belong: what was typed is not kept.
    text = "\0".join(words)
    return salted_hmac("switchyard.tally", text, algorithm="sha256").hexdigest()


def _nonce_in(device: str, username: str) -> str:
    if not device:
        return ""
    try:
        match signing.loads(device, salt="device"):
            case [str() as key, str() as nonce] if key == _key("device", username):
                return nonce
    except (signing.BadSignature, ValueError):
        pass
    return ""


def _network(address: str) -> str:
    """What one subscriber holds: a single IPv4 address, but 2^64 of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6:
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
