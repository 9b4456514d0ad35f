"""What every test of the service around the planner begins from."""

import pytest


@pytest.fixture(autouse=True)
def _as_if_new(no_memory: None) -> None:
    """No picture, facility or line is left of the test before."""
