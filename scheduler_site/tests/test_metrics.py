"""Figures for Prometheus."""

import pytest
from prometheus_client.parser import text_string_to_metric_families


@pytest.mark.django_db
def test_metrics_are_readable_and_count_jobs_in_every_state(client):
    answer = client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}

    assert answer["Content-Type"].startswith("text/plain")
    assert {sample.labels["state"] for sample in families["switchyard_jobs"].samples} >= {
        "queued",
        "running",
        "failed",
    }
