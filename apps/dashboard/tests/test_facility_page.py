"""The pages that set how the facility is built and who works in it."""

import re

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.dashboard.tests.facility import PASSWORD, Facility, signed_in
from apps.inventory.models import Node
from apps.teams.models import FacilityRole, User

MORE = """\
nodes:
  - {name: "x[1-3]", cluster: hall-a, accelerator_type: H100, n_devices: 8, leaf: L01, power: A1-01}
  - {name: l01-n01, cluster: hall-a, accelerator_type: H100, n_devices: 8, speed: 0.9}
"""


def words(answer: object) -> str:
    text = answer.content.decode()  # type: ignore[attr-defined]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def digest_in(answer: object) -> str:
    found = re.search(r'name="digest" value="([0-9a-f]+)"', answer.content.decode())  # type: ignore[attr-defined]
    assert found is not None
    return found[1]


def post(user: User, **fields: object):
    return signed_in(user).post("/settings/facility/", {"action": "check", "text": MORE, **fields})


def test_a_check_says_what_would_change_and_who_runs_there(facility: Facility) -> None:
    answer = post(facility.admin)

    assert answer.status_code == 200
    assert "1 changed, 3 added" in words(answer)
    assert "speed 1 → 0.9" in words(answer)
    assert f'href="/jobs/{facility.running.pk}/"' in answer.content.decode()
    assert "Apply 4 changes" in words(answer)
    assert not Node.objects.filter(name="x1").exists()


def test_what_was_checked_is_applied(facility: Facility) -> None:
    digest = digest_in(post(facility.admin))
    answer = post(facility.admin, action="apply", digest=digest, reason="three more")

    assert answer.status_code == 302
    assert Node.objects.filter(name__in=["x1", "x2", "x3"]).count() == 3
    assert Node.objects.get(name="l01-n01").speed == 0.9


def test_what_changed_meanwhile_is_shown_anew_and_not_applied(facility: Facility) -> None:
    digest = digest_in(post(facility.admin))
    Node.objects.filter(name="l01-n01").update(speed=0.7)

    answer = post(facility.admin, action="apply", digest=digest)

    assert answer.status_code == 409
    assert "check it again" in words(answer)
    assert "speed 0.7 → 0.9" in words(answer)
    assert not Node.objects.filter(name="x1").exists()


def test_an_uploaded_file_counts_and_comes_back_in_the_box(facility: Facility) -> None:
    file = SimpleUploadedFile("facility.yaml", MORE.replace("x[", "up[").encode())

    answer = post(facility.admin, text="", file=file)

    assert answer.status_code == 200
    assert "up[1-3]" in answer.content.decode()
    assert "3 added" in words(answer)


def test_a_file_that_is_no_text_or_too_large_is_refused(facility: Facility) -> None:
    binary = SimpleUploadedFile("facility.yaml", b"\xff\xfe\x00")
    large = SimpleUploadedFile("facility.yaml", b"#" * 3_000_000)

    assert "is no text" in words(post(facility.admin, file=binary))
    assert post(facility.admin, file=large).status_code in (400, 413)


def test_a_form_that_carries_a_file_needs_its_token(facility: Facility) -> None:
    client = signed_in(facility.admin, enforce_csrf_checks=True)

    assert client.post("/settings/facility/", {"action": "check", "text": MORE}).status_code == 403


def test_faults_are_told_by_line_and_cannot_be_applied(facility: Facility) -> None:
    answer = post(facility.admin, text=MORE.replace("leaf: L01", "leaf: <b>"))

    assert answer.status_code == 400
    assert "names nothing that is here: &lt;b&gt;" in answer.content.decode()
    assert 'value="apply"' not in answer.content.decode()


@pytest.mark.parametrize("who", ["auditor", "lead", "member", "viewer"])
def test_only_who_operates_sees_the_model(facility: Facility, who: str) -> None:
    assert signed_in(getattr(facility, who)).get("/settings/facility/").status_code == 403
    assert post(getattr(facility, who)).status_code == 403


def test_an_operator_checks_and_does_not_apply(facility: Facility) -> None:
    answer = post(facility.operator)

    assert answer.status_code == 200
    assert 'value="apply"' not in answer.content.decode()
    assert post(facility.operator, action="apply", digest=digest_in(answer)).status_code == 403


def test_who_is_not_signed_in_is_sent_to_sign_in() -> None:
    assert Client().get("/settings/facility/").status_code == 302


def test_the_download_reads_back_without_a_change(facility: Facility) -> None:
    text = signed_in(facility.operator).get("/settings/facility/?format=yaml").content.decode()

    assert "It changes nothing" in words(post(facility.operator, text=text, is_whole="on"))


@pytest.mark.parametrize("sample", ["yaml", "csv"])
def test_the_samples_can_be_applied(facility: Facility, sample: str) -> None:
    page = signed_in(facility.operator).get(f"/settings/facility/?sample={sample}")

    assert 'value="apply"' not in page.content.decode()
    assert post(facility.admin, text=page.context["draft"].text).context["draft"].checked.may_be_applied


@pytest.mark.parametrize("path", ["/settings/", "/settings/facility/", "/settings/people/"])
def test_settings_take_few_queries(facility: Facility, path: str) -> None:
    client = signed_in(facility.admin)
    client.get(path)
    with CaptureQueriesContext(connection) as queries:
        client.get(path)

    assert len(queries) <= 2 + 1 + 12


# People -------------------------------------------------------------------------------------------------------------


def test_an_administrator_adds_a_person_who_can_sign_in(facility: Facility) -> None:
    fields = {"username": "new", "full_name": "Nora New", "facility_role": "operator", "password": PASSWORD}
    answer = signed_in(facility.admin).post("/settings/people/", {"action": "create", **fields})

    assert answer.status_code == 302
    assert User.objects.get(username="new").facility_role == FacilityRole.OPERATOR
    assert Client().login(username="new", password=PASSWORD)


def test_a_name_that_is_taken_and_a_weak_password_are_told_at_their_fields(facility: Facility) -> None:
    client = signed_in(facility.admin)
    taken = client.post("/settings/people/", {"action": "create", "username": "max", "password": PASSWORD})
    weak = client.post("/settings/people/", {"action": "create", "username": "weak", "password": "1"})

    assert (taken.status_code, taken.context["errors"]) == (409, {"username": ["is taken"]})
    assert (weak.status_code, list(weak.context["errors"])) == (400, ["password"])


def test_roles_change_and_people_are_shut_out(facility: Facility) -> None:
    client = signed_in(facility.admin)
    client.post("/settings/people/", {"action": "role", "person": "max", "facility_role": "auditor"})
    client.post("/settings/people/", {"action": "shut-out", "person": "sam"})

    assert User.objects.get(username="max").facility_role == FacilityRole.AUDITOR
    assert not User.objects.get(username="sam").is_active


@pytest.mark.parametrize(("who", "sees", "acts"), [("auditor", 200, 403), ("operator", 403, 403)])
def test_people_are_seen_by_auditors_and_changed_by_administrators(
    facility: Facility, who: str, sees: int, acts: int
) -> None:
    client = signed_in(getattr(facility, who))

    assert client.get("/settings/people/").status_code == sees
    assert client.post("/settings/people/", {"action": "shut-out", "person": "max"}).status_code == acts
    assert User.objects.get(username="max").is_active


@pytest.mark.parametrize(
    ("who", "status"), [("admin", 200), ("operator", 200), ("auditor", 200), ("member", 403)]
)
def test_settings_open_for_who_looks_after_the_facility(facility: Facility, who: str, status: int) -> None:
    client = signed_in(getattr(facility, who))

    assert client.get("/settings/").status_code == status
    assert ('href="/settings/"' in client.get("/").content.decode()) == (status == 200)
