"""What page tests start from."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.dashboard.tests.facility import Facility, build_facility


@pytest.fixture
def facility(db: None) -> Facility:
    """The small facility of `facility.py`, half an hour old."""
    return build_facility(at=clock.now() - timedelta(minutes=30))
