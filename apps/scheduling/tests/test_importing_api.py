"""Batch scripts and manifests by REST: shown, refused with the line, submitted all or none."""

import pytest

from apps.jobs.models import Job
from apps.jobs.tests.builders import fleet, person, team
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db

SCRIPT = "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gpus=2\n#SBATCH --time=10\npython train.py\n"


@pytest.fixture
def ours():
    kind = fleet(2, 4, kind="H100").kind
    return team("vision", quota={kind: 8})


def test_a_script_is_shown_with_its_preview_and_not_submitted(ours):
    answer = client(person(ours)).post("/api/v1/jobs/import", {"text": SCRIPT})

    assert answer.status_code == 200, answer.content
    said = answer.json()
    assert said["format"] == "sbatch"
    (job,) = said["jobs"]
    assert job == {
        "name": "train", "team": "vision", "time_limit": 600, "replicas": 1, "devices": 2, "script": SCRIPT,
    }  # fmt: skip
    assert said["previews"][0]["would_start"] is True
    assert said["can_submit"] is True
    assert said["submitted"] is None
    assert not Job.objects.exists()
