"""What page tests start from."""

import copy
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import transaction
from pytest_django import DjangoDbBlocker

from apps.core import clock
from apps.dashboard.tests.facility import Facility, build_facility


@pytest.fixture(scope="module")
def built_facility(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Facility]:
    """Built once for the tests of a file, in a transaction around theirs."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield build_facility(at=clock.now() - timedelta(minutes=30))
        transaction.set_rollback(True)


@pytest.fixture
def facility(built_facility: Facility, db: None) -> Facility:
    """The small facility of `facility.py`, half an hour old; what a test changes is undone after it."""
    return copy.deepcopy(built_facility)
