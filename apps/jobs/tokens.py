"""Tokens that attempts post their progress with. Each is good for its own attempt alone, and only while that is open.

The secret follows from the site's key and the attempt: an order that is made again, after a crash, carries the same
one, though only its digest is kept. A site that changes its key makes no other secret for an attempt that has one.
"""

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.crypto import salted_hmac

from apps.jobs.models import Allocation, AllocationToken
from apps.teams import services as teams
from apps.teams.models import User

PREFIX: Final = "sya_"
PROGRESS: Final = AllocationToken.scopes[0]
_DELETED_AFTER: Final = timedelta(days=1)


def issue(*, allocations: Sequence[Allocation], at: datetime) -> dict[int, str]:
    """Secrets by allocation id. Asking again answers the same."""
    secrets = {one.pk: _secret_of(one) for one in allocations}
    AllocationToken.objects.bulk_create(
        [
            AllocationToken(allocation_id=id_, digest=teams.digest_of(secret), created_at=at)
            for id_, secret in secrets.items()
        ],
        ignore_conflicts=True,
    )
    return secrets


def authenticate(secret: str, at: datetime) -> tuple[User, Any] | None:
    """Whose token this is, of a person or of an attempt (then the person's who submitted it); None for any other."""
    if not secret.startswith(PREFIX):
        return teams.authenticate_token(secret, at)
    token = (
        AllocationToken.objects.select_related("allocation__job__user")
        .filter(digest=teams.digest_of(secret), allocation__ended_at=None)
        .first()
    )
    if token is None or not token.allocation.job.user.is_active:
        return None
    return token.allocation.job.user, token


def prune(*, at: datetime) -> int:
    """Delete tokens of attempts that are over: they open nothing any more."""
    n_deleted, _ = AllocationToken.objects.filter(allocation__ended_at__lt=at - _DELETED_AFTER).delete()
    return n_deleted


def _secret_of(allocation: Allocation) -> str:
    text = f"{allocation.pk}:{allocation.fence}"
    digest = salted_hmac("switchyard.allocation-token", text, algorithm="sha256").digest()
    return PREFIX + base64.urlsafe_b64encode(digest).decode().rstrip("=")
