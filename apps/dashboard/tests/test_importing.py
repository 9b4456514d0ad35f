"""The page that takes a batch script or manifests: it shows the job and what became of each option, then submits."""

import re

from apps.dashboard.tests.facility import Facility, signed_in
from apps.jobs.models import Job

SCRIPT = "#!/bin/bash\r\n#SBATCH --job-name=pasted\r\n#SBATCH --gpus=1\r\n#SBATCH --mail-type=END\r\n./train <b>\r\n"


def words(answer: object) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))  # type: ignore[attr-defined]


def post(facility: Facility, **fields: str):
    return signed_in(facility.member).post("/jobs/import/", {"text": SCRIPT, "key": "k", **fields})


def test_the_job_is_shown_with_what_was_ignored_and_why(facility: Facility) -> None:
    n_before = Job.objects.count()
    answer = post(facility, action="show")

    assert answer.status_code == 200
    assert "1 × 1 device " in words(answer)
    assert "ignored line 4 --mail-type is ignored No mail is sent" in words(answer)
    assert "It would" in words(answer)
    assert 'value="submit"' in answer.content.decode()
    assert Job.objects.count() == n_before


def test_what_was_shown_is_submitted_once_however_often_the_button_is_pressed(facility: Facility) -> None:
    first, again = post(facility, action="submit"), post(facility, action="submit")

    job = Job.objects.get(name="pasted")
    assert first.status_code == again.status_code == 302
    assert first["Location"] == again["Location"] == f"/jobs/{job.pk}/"
    assert job.private["script"] == SCRIPT.replace("\r\n", "\n")


def test_what_is_refused_stands_on_top_and_cannot_be_submitted(facility: Facility) -> None:
    text = SCRIPT.replace("--mail-type=END", "--nodelist=n1")
    shown = post(facility, text=text, action="show")
    submitted = post(facility, text=text, action="submit")

    assert shown.status_code == submitted.status_code == 400
    assert 'role="alert"' in shown.content.decode()
    assert "line 4: --nodelist" in words(shown)
    assert 'value="submit"' not in shown.content.decode()
    assert not Job.objects.filter(name="pasted").exists()


def test_text_that_is_nothing_is_said_to_be_nothing_and_kept_in_its_box(facility: Facility) -> None:
    answer = post(facility, text="hello </textarea><script>", action="show")

    assert answer.status_code == 400
    assert "neither a batch script" in words(answer)
    assert "hello &lt;/textarea&gt;&lt;script&gt;" in answer.content.decode()


def test_options_win_over_the_script_and_wrong_quotes_are_named(facility: Facility) -> None:
    assert "1 × 2 devices" in words(post(facility, options="--gpus=2", action="show"))
    assert "No closing quotation" in words(post(facility, options="--comment='x", action="show"))


def test_several_manifests_lead_to_the_queue(facility: Facility) -> None:
    pod = "kind: Pod\nmetadata: {name: pasted}\nspec: {containers: [{name: c, command: [x]}]}\n"
    answer = post(facility, text=f"{pod}---\n{pod}", team=facility.pretraining.name, action="submit")

    assert answer["Location"] == "/queue/?mine=1"
    assert Job.objects.filter(name="pasted").count() == 2
