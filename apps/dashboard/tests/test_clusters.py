"""Clusters: their page, and how they are connected; a connection is tried for real before anything is saved."""

import base64

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.dashboard.tests.facility import signed_in
from apps.execution import connections
from apps.execution.backends.base import Survey
from apps.execution.models import SlurmConnection, SlurmRun
from apps.execution.slurm_models import seal
from apps.inventory.models import Backend, Cluster, Node, OutsideUse
from apps.jobs.tests.builders import allocate, fleet, grant, job, team
from apps.jobs.tests.builders import person as member
from apps.teams.tests.builders import NOON, person
from scripts.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.django_db
URL = "/settings/clusters/"
NOWHERE = "http://127.0.0.1:9"


def form(**changes):
    given = {
        "name": "theirs",
        "rest_url": NOWHERE,
        "user_name": "root",
        "credential": "key",
        "secret": base64.b64encode(b"k" * 32).decode(),
        "shared_dir": "/tmp",
        "partition": "",
        "slurm_conf": "",
        "accelerator": "",
    }
    return {**given, **changes}


def test_the_list_counts_what_is_there_and_says_who_is_silent():
    where = fleet(2, 4)
    ours = team()
    me = member(ours)
    allocate(job(ours, me, devices=1), where, grant(where.nodes[0], (0,)))
    Node.objects.filter(pk=where.nodes[1].pk).update(health="drained")
    Cluster.objects.filter(pk=where.cluster.pk).update(last_error="It <b>hangs</b>.")
    with CaptureQueriesContext(
        connection,
    ) as asked:
        text = signed_in(me).get(URL).content.decode()
    assert "Failing" in text
    assert "It &lt;b&gt;hangs&lt;/b&gt;." in text
    assert "1 take no work" in text
    assert sum("inventory_cluster" in one["sql"] and "n_foreign" in one["sql"] for one in asked) == 1


def test_who_may_what():
    where = fleet(1, 4)
    page = f"{URL}{where.cluster.pk}/"
    viewer, operator = signed_in(person("viewer")), signed_in(person("olga", "operator"))
    assert "Connect Slurm" not in viewer.get(URL).content.decode()
    assert viewer.get(page).status_code == 200
    for client in (viewer, operator):
        assert client.get(f"{URL}new/slurm/").status_code == 403
        assert client.post(f"{URL}new/slurm/", form()).status_code == 403
        assert client.get("/api/v1/clusters/x/connection").status_code == 403
    assert viewer.post(f"{page}sync/").status_code == 403
    assert operator.post(f"{page}sync/").status_code == 404  # this machine is nothing outside
    admin = signed_in(person("ada", "admin"))
    assert admin.get(f"{URL}new/windows/").status_code == 404
    assert admin.get(f"{URL}999999/").status_code == 404


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rest_url": ""}, "rest_url"),
        ({"rest_url": "ftp://there"}, "rest_url"),
        ({"secret": ""}, "secret"),
        ({"secret": "###"}, "secret"),
        ({"credential": "password"}, "credential"),
        ({"shared_dir": "nowhere"}, "shared_dir"),
        ({"name": "a/b"}, "name"),
        ({"user_name": "x\x00y"}, "user_name"),
    ],
)
def test_a_fault_is_shown_at_its_field_and_nothing_is_saved(changes, field):
    answer = signed_in(person("ada", "admin")).post(f"{URL}new/slurm/", form(**changes))
    text = answer.content.decode()
    assert answer.status_code == 400
    assert f'id="error-{field}"' in text
    assert not Cluster.objects.exists()
    assert form()["secret"] not in text


@pytest.mark.parametrize("act", ["try", "save"])
def test_what_does_not_answer_is_told_and_not_saved(act):
    client = signed_in(person("ada", "admin"))
    answer = client.post(f"{URL}new/slurm/", form(act=act), headers={"HX-Request": "true"})
    assert "Nothing was" in answer.content.decode()
    assert "<html" not in answer.content.decode()
    assert not Cluster.objects.exists()


def test_by_rest_faults_name_their_fields_and_a_wrong_engine_is_refused():
    client = signed_in(person("ada", "admin"))
    url = "/api/v1/clusters/theirs/connection"
    values = {name: value for name, value in form(rest_url="ftp://x", more="1").items() if name != "name"}
    answer = client.put(url, {"engine": "slurm", "values": values}, content_type="application/json")
    assert answer.status_code == 400
    assert {one["path"] for one in answer.json()["errors"]} == {"values.more"}
    answer = client.put(url, {"engine": "windows", "values": {}}, content_type="application/json")
    assert answer.status_code == 400
    answer = client.put(url, {"engine": "slurm", "values": {"user_name": 3}}, content_type="application/json")
    assert answer.status_code == 400
    assert not Cluster.objects.exists()


def test_a_real_slurm_is_tried_connected_looked_at_and_reached_in_another_way(slurm: SlurmCluster):
    client = signed_in(person("ada", "admin"))
    given = form(
        rest_url=slurm.rest_url,
        secret=base64.b64encode(slurm.jwt_key).decode(),
        shared_dir=str(slurm.shared),
        slurm_conf=str(slurm.conf),
        accelerator="H100",
    )
    text = client.post(
        f"{URL}new/slurm/", {**given, "act": "try"}, headers={"HX-Request": "true"}
    ).content.decode()
    assert "8 nodes with 64 devices" in text
    assert not Cluster.objects.exists()

    assert client.post(f"{URL}new/slurm/", {**given, "act": "save"}).status_code == 302
    cluster = Cluster.objects.get(backend=Backend.SLURM)
    page = f"{URL}{cluster.pk}/"
    node = Node.objects.filter(cluster=cluster).order_by("name")[0]
    OutsideUse.objects.create(node=node, key="77", label="theirs <b>", device_indices=[1], since_at=NOON)
    text = client.get(page).content.decode()
    assert slurm.rest_url in text
    assert "theirs &lt;b&gt;" in text
    assert given["secret"] not in text

    assert client.post(f"{page}sync/").status_code == 302
    cluster.refresh_from_db()
    assert cluster.engine_version
    assert not OutsideUse.objects.exists()  # it was looked at: nobody else is there

    # Without its secret it can be reached in another way at the same address, and nowhere else.
    changed = client.post(f"{page}change/", {**given, "secret": "", "partition": "no such", "act": "save"})
    assert changed.status_code == 400
    assert 'id="error-partition"' in changed.content.decode()
    moved = client.post(f"{page}change/", {**given, "secret": "", "rest_url": NOWHERE, "act": "save"})
    assert moved.status_code == 400
    assert 'id="error-secret"' in moved.content.decode()
    assert client.post(f"{page}change/", {**given, "secret": "", "act": "save"}).status_code == 302
    assert SlurmConnection.objects.get().secret == given["secret"]

    told = client.get(f"/api/v1/clusters/{cluster.name}/connection").json()
    assert told["values"]["rest_url"] == slurm.rest_url
    assert "secret" not in told["values"]
    done = client.post(f"/api/v1/clusters/{cluster.name}/sync", content_type="application/json")
    assert done.json()["n_nodes_taken"] == 0


def test_a_kubernetes_is_tried_connected_and_reached_in_another_way(kubernetes):
    client = signed_in(person("ada", "admin"))
    given = {
        "name": "pods",
        "api_url": kubernetes.url,
        "namespace": "default",
        "token": "a-token-of-theirs",
        "image": "busybox",
        "resource": "nvidia.com/gpu",
        "accelerator": "H100",
        "ca_pem": "",
        "labels": "leaf = example.org/leaf, other.org/leaf",
    }
    new = f"{URL}new/kubernetes/"
    answer = client.post(new, {**given, "act": "try"}, headers={"HX-Request": "true"})
    assert "It answers" in answer.content.decode()
    assert not Cluster.objects.exists()
    bad = client.post(new, {**given, "labels": "leaf", "act": "save"})
    assert (bad.status_code, 'id="error-labels"' in bad.content.decode()) == (400, True)
    long = client.post(new, {**given, "namespace": "n" * 64, "act": "save"})
    assert (long.status_code, 'id="error-namespace"' in long.content.decode()) == (400, True)

    assert client.post(new, {**given, "act": "save"}).status_code == 302
    cluster = Cluster.objects.get(backend=Backend.KUBERNETES)
    page = f"{URL}{cluster.pk}/"
    text = client.get(page).content.decode()
    assert "leaf = example.org/leaf, other.org/leaf" in text
    assert given["token"] not in text + client.get(f"{page}change/").content.decode()
    assert client.post(f"{page}sync/").status_code == 302

    moved = client.post(f"{page}change/", {**given, "token": "", "api_url": NOWHERE, "act": "save"})
    assert (moved.status_code, 'id="error-token"' in moved.content.decode()) == (400, True)
    assert client.post(f"{page}change/", {**given, "token": "", "act": "save"}).status_code == 302
    assert cluster.kubernetes.token == given["token"]


def test_the_shared_folder_stays_while_jobs_write_to_it(monkeypatch, tmp_path):
    """Whether a run began, and how it ended, stands there: looked for elsewhere it would be run again."""
    monkeypatch.setattr(connections, "try_slurm", lambda draft: Survey(nodes=(), version="22.05"))
    where, admin = fleet(1, 4, backend=Backend.SLURM), signed_in(person("ada", "admin"))
    given = form(shared_dir=str(tmp_path))
    kept = {name: given[name] for name in ("rest_url", "user_name", "credential", "shared_dir")}
    SlurmConnection.objects.create(cluster=where.cluster, sealed_secret=seal(given["secret"]), **kept)
    run = SlurmRun.objects.create(cluster=where.cluster, allocation_id=1, job_id=1, fence=1, claimed_at=NOON)
    body = {"engine": "slurm", "values": {k: v for k, v in given.items() if k != "name"}}
    url = f"/api/v1/clusters/{where.cluster.name}/connection"

    def put(folder):
        body["values"]["shared_dir"] = str(folder)
        return admin.put(url, body, content_type="application/json")

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "same").symlink_to(tmp_path)
    refused = put(tmp_path / "elsewhere")
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "values.shared_dir")
    assert put(tmp_path / "same").status_code == 200
    run.ended_at, run.reason = NOON, "exited"
    run.save()
    assert put(tmp_path / "elsewhere").status_code == 200
