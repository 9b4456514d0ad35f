"""The floor everything stands on."""

import pytest
from django.db import connection


@pytest.mark.django_db
def test_the_database_is_postgresql_and_migrated():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_migrations")
        assert cursor.fetchone()[0] > 0
    assert connection.vendor == "postgresql"


@pytest.mark.django_db
def test_health_answers_without_signing_in(client):
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").json()["missing"] == ["beat", "execution", "planning", "power", "watchdog"]
    assert client.get("/metrics").status_code == 200
