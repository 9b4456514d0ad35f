"""Sources of readings: set up by REST, fetched from a Prometheus that speaks HTTP, kept once, errors told."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import InvalidInput
from apps.events.models import Event
from apps.inventory import services as inventory
from apps.inventory.models import AcceleratorType
from apps.inventory.tests.builders import domain
from apps.power import meter_services
from apps.power.meter_services import MeterDraft, create_meter, read_meters
from apps.power.models import MeterSource, NodeReading, PowerReading
from apps.power.prometheus import MeterError, ask
from apps.power.tasks import read_meters as task
from apps.power.tests.prometheus import FakePrometheus
from apps.teams.tests.builders import NOON, client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/power/meters"
PDU, GPU = "sum by (pdu) (pdu_watts)", "DCGM_FI_DEV_POWER_USAGE"


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    with FakePrometheus() as running:
        yield running


def meter(fake: FakePrometheus, name: str = "pdu", **more) -> MeterSource:
    said = {"url": fake.url, "query": PDU, "domain_label": "pdu", **more}
    return create_meter(draft=MeterDraft(name=name, **said), actor=None, at=NOON)


def racks(*names: str) -> None:
    hall = domain("h1", "hall")
    for name in names:
        domain(name, "rack", hall)


def node(name: str, n_devices: int = 2) -> None:
    kind = inventory.create_accelerator_type(name=f"of {name}", tdp_w=700, actor=None, at=NOON)
    cluster = inventory.create_cluster(name=f"at {name}", backend="simulated", actor=None, at=NOON)
    facts = inventory.NodeFacts(name=name, accelerator_type=kind, n_devices=n_devices)
    inventory.create_node(cluster=cluster, facts=facts, actor=None, at=NOON)


def test_series_become_readings_of_the_domains_their_label_names(fake: FakePrometheus):
    racks("r1", "r2")
    # In kilowatts, and the second under another name there; the last names nothing here.
    fake.vectors[PDU] = [
        ({"pdu": "r1"}, "20.8", None),
        ({"pdu": "PDU 2"}, "30.4", None),
        ({"pdu": "x"}, "1", None),
    ]
    row = meter(fake, scale=1000.0, names={"PDU 2": "r2"})

    assert read_meters(at=NOON) == 1
    row.refresh_from_db()
    found = {
        one.domain.name: (one.draw_w, one.at, one.quality, one.source) for one in PowerReading.objects.all()
    }
    assert found == {
        "r1": (pytest.approx(20_800.0), NOON, "ok", "pdu"),
        "r2": (pytest.approx(30_400.0), NOON, "ok", "pdu"),
    }
    assert (row.last_ok_at, row.last_error, row.n_taken, row.n_left) == (NOON, "", 2, 1)


def test_a_series_that_fell_silent_keeps_the_instant_at_which_it_spoke(fake: FakePrometheus):
    racks("r1")
    # Prometheus gives a value of four minutes ago as if it were of now.
    spoken = NOON - timedelta(minutes=4)
    fake.vectors[PDU] = [({"pdu": "r1"}, "5", spoken.timestamp())]
    meter(fake)
    read_meters(at=NOON)
    read_meters(at=NOON + timedelta(seconds=30))

    assert [one.at for one in PowerReading.objects.all()] == [spoken]


def test_a_source_is_asked_when_its_time_has_come_and_the_same_is_kept_once(fake: FakePrometheus):
    racks("r1")
    fake.vectors[PDU] = [({"pdu": "r1"}, "5", None)]
    meter(fake, every_s=30)
    asked = [read_meters(at=NOON + timedelta(seconds=s)) for s in (0, 0, 5, 28, 29.5, 31)]

    assert asked == [1, 0, 0, 0, 1, 0]
    assert PowerReading.objects.count() == 2


def test_devices_and_nodes_are_read_by_name_and_index(fake: FakePrometheus):
    node("n1")
    fake.vectors[GPU] = [
        ({"Hostname": "n1", "gpu": "0"}, "612.5", None),
        ({"Hostname": "n1", "gpu": "1"}, "98", None),
        ({"Hostname": "n1", "gpu": "2"}, "5", None),  # it has two
        ({"Hostname": "n1", "gpu": "-1"}, "5", None),
        ({"Hostname": "n1", "gpu": "\u0661"}, "5", None),
        ({"Hostname": "n9", "gpu": "0"}, "5", None),
        ({"gpu": "0"}, "5", None),
    ]
    fake.vectors["host"] = [({"instance": "n1:9100"}, "2000", None)]
    meter(fake, "dcgm", query=GPU, domain_label="", node_label="Hostname", device_label="gpu")
    meter(fake, "host", query="host", domain_label="", node_label="instance", names={"n1:9100": "n1"})
    read_meters(at=NOON)
    later = NOON + timedelta(minutes=1)
    fake.vectors[GPU] = [({"Hostname": "n1", "gpu": "0"}, "700", None)]
    read_meters(at=later)

    found = {(one.source, one.index): (one.draw_w, one.at) for one in NodeReading.objects.all()}
    assert found == {
        ("dcgm", 0): (700.0, later),  # the last word alone is kept
        ("dcgm", 1): (98.0, NOON),
        ("host", None): (2000.0, later),
    }


def test_a_device_is_quiet_since_the_first_of_the_words_that_follow_one_another(fake: FakePrometheus):
    node("n1", n_devices=1)  # 700 W at most, at rest the usual share of it
    kind = AcceleratorType.objects.get()
    at_rest_w, at_work_w = kind.idle_w + 0.04 * (kind.tdp_w - kind.idle_w), kind.tdp_w
    meter(fake, "dcgm", query=GPU, domain_label="", node_label="Hostname", device_label="gpu")

    def quiet_since_min(minute: int, draw_w: float) -> float | None:
        fake.vectors[GPU] = [({"Hostname": "n1", "gpu": "0"}, str(draw_w), None)]
        read_meters(at=NOON + timedelta(minutes=minute))
        since_at = NodeReading.objects.get().quiet_since_at
        return None if since_at is None else (since_at - NOON) / timedelta(minutes=1)

    assert quiet_since_min(0, at_work_w) is None
    assert [quiet_since_min(minute, at_rest_w) for minute in (1, 2, 11)] == [1, 1, 1]
    assert quiet_since_min(12, at_work_w) is None
    assert quiet_since_min(13, at_rest_w) == 13
    assert quiet_since_min(25, at_rest_w) == 25  # what it did in the silence before is not known


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e300", "watts", ""])
def test_a_value_that_is_no_power_is_not_taken(fake: FakePrometheus, value: str):
    racks("r1", "r2")
    fake.vectors[PDU] = [({"pdu": "r1"}, value, None), ({"pdu": "r2"}, "7", None)]
    row = meter(fake)
    read_meters(at=NOON)
    row.refresh_from_db()

    assert [one.domain.name for one in PowerReading.objects.all()] == ["r2"]
    assert (row.n_taken, row.n_left, row.last_error) == (1, 1, "")


def test_two_series_of_one_domain_are_not_guessed_between(fake: FakePrometheus):
    racks("r1", "r2")
    fake.vectors[PDU] = [
        ({"pdu": "r1", "feed": "A"}, "10", None),
        ({"pdu": "r1", "feed": "B"}, "10", None),
        ({"pdu": "r2"}, "7", None),
    ]
    meter(fake)
    read_meters(at=NOON)

    assert [one.domain.name for one in PowerReading.objects.all()] == ["r2"]


def _packed(handler) -> bool:
    handler.answer(200, "x", plain=True, headers={"Content-Encoding": "gzip"})
    return True


def _moved(handler) -> bool:
    handler.answer(302, "", plain=True, headers={"Location": "http://127.0.0.1:1/"})
    return True


def _large(handler) -> bool:
    handler.answer(200, "x" * 100_000, plain=True)
    return True


def _silent(handler) -> bool:
    time.sleep(2.0)
    return True


def _trickling(handler) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
    return True


def _plain(status: int, text: str):
    def answered(handler) -> bool:
        handler.answer(status, text, plain=True)
        return True

    return answered


@pytest.mark.parametrize(
    ("misbehave", "said"),
    [
        (_packed, "packed"),
        (_moved, "answered 302"),
        (_large, "larger than"),
        (_silent, "in time"),
        (_trickling, "in time"),
        (_plain(200, "<html>"), "nothing that Prometheus says"),
        (_plain(200, "[" * 50_000), "nothing that Prometheus says"),
        (_plain(503, '{"status": "success"}'), "answered 503"),
        (
            _plain(200, '{"status": "success", "data": {"resultType": "scalar", "result": [0, "1"]}}'),
            "vector",
        ),
        (_plain(200, '{"status": "success", "data": {"resultType": "vector", "result": {}}}'), "no list"),
        (_plain(200, '{"status": "success", "data": {"resultType": "vector", "result": [1]}}'), "no labels"),
        (
            _plain(
                200,
                '{"status": "success", "data": {"resultType": "vector", "result":'
                ' [{"metric": {"a": 1}, "value": [1, "1"]}]}}',
            ),
            "no text",
        ),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_its_own_words(fake: FakePrometheus, misbehave, said: str):
    fake.misbehave = misbehave
    timeout_s = 0.5 if said == "in time" else 60.0  # only who never answers is given up soon
    with pytest.raises(MeterError, match=said):
        ask(fake.url, PDU, at=NOON, timeout_s=timeout_s, max_bytes=60_000)


def test_an_error_is_kept_shown_and_over_when_it_is_over(fake: FakePrometheus):
    racks("r1")
    row = meter(fake)
    read_meters(at=NOON)
    row.refresh_from_db()
    assert "refuses the query: 1:1: parse error" in row.last_error
    assert row.last_ok_at is None

    # The same again is no news.
    read_meters(at=NOON + timedelta(minutes=1))
    fake.vectors[PDU] = [({"pdu": "r1"}, "5", None)]
    read_meters(at=NOON + timedelta(minutes=2))
    row.refresh_from_db()
    assert (row.last_error, row.last_ok_at) == ("", NOON + timedelta(minutes=2))
    told = Event.objects.filter(subject_kind="meter").order_by("id").values_list("kind", flat=True)
    assert list(told) == ["meter.created", "meter.failing", "meter.recovered"]


def test_a_query_that_names_nothing_here_says_what_it_names(fake: FakePrometheus):
    racks("r1")
    fake.vectors[PDU] = [({"pdu": "rack one"}, "5", None)]
    row = meter(fake)
    read_meters(at=NOON)
    row.refresh_from_db()

    assert "the first says 'rack one'" in row.last_error


def test_one_that_hangs_keeps_nobody_from_being_read(fake: FakePrometheus):
    racks("r1")
    fake.vectors[PDU] = [({"pdu": "r1"}, "5", None)]
    is_over = threading.Event()
    with FakePrometheus() as hanging:
        hanging.misbehave = lambda handler: is_over.wait(60.0)
        meter(hanging, "a-hanging-one")
        meter(fake)
        assert read_meters(at=NOON, answer_s=5.0) == 2
        is_over.set()  # only now does it answer: nobody waited for it

    assert MeterSource.objects.get(name="a-hanging-one").last_error == "It did not answer in time."
    assert PowerReading.objects.count() == 1


def test_a_source_that_is_not_there_is_told_so_without_its_address():
    row = create_meter(
        draft=MeterDraft(name="gone", url="http://127.0.0.1:1", query="x", node_label="n"),
        actor=None,
        at=NOON,
    )
    read_meters(at=NOON)
    row.refresh_from_db()

    assert row.last_error.startswith("It cannot be reached")
    assert "127.0.0.1" not in row.last_error


def test_what_was_changed_while_it_answered_is_left_alone(fake: FakePrometheus):
    racks("r1")
    fake.vectors[PDU] = [({"pdu": "r1"}, "5", None)]
    row = meter(fake)
    MeterSource.objects.filter(pk=row.pk).update(version=2)
    meter_services._keep(row, ask(fake.url, PDU, at=NOON, timeout_s=5.0), NOON)

    assert not PowerReading.objects.exists()


def test_a_source_that_is_off_is_not_asked(fake: FakePrometheus):
    meter(fake, is_enabled=False)

    assert read_meters(at=NOON) == 0
    assert fake.asked == []


@pytest.mark.django_db(transaction=True)
def test_two_workers_do_not_ask_at_once(fake: FakePrometheus):
    from django.db import connection

    from apps.core.locks import session_lock

    meter(fake)
    found = []

    def other() -> None:
        found.append(read_meters(at=NOON))
        connection.close()

    with session_lock(meter_services._LOCK) as is_ours:
        assert is_ours
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert found == [0]


def test_the_task_of_the_power_loop_reads_them(fake: FakePrometheus):
    racks("r1")
    fake.vectors[PDU] = [({"pdu": "r1"}, "5", None)]
    meter(fake)
    task()

    assert PowerReading.objects.count() == 1


# REST ---------------------------------------------------------------------------------------------------------------

BODY = {"name": "pdu", "url": "http://prometheus:9090", "query": PDU, "labels": {"domain": "pdu"}}


@pytest.fixture
def admin():
    return client(person("pia", "power_admin"))


def test_a_source_is_made_changed_and_deleted(admin):
    made = admin.post(URL, BODY)
    assert made.status_code == 201, made.content
    assert admin.get(URL).json()["items"] == [admin.get(f"{URL}/pdu").json()] == [made.json()]
    assert made.json()["labels"] == {"domain": "pdu", "node": None, "device": None}

    changed = admin.patch(
        f"{URL}/pdu", {"version": 1, "labels": {"node": "Hostname", "device": "gpu"}, "every_s": 10}
    )
    assert (changed.status_code, changed.json()["version"], changed.json()["every_s"]) == (200, 2, 10)
    assert admin.patch(f"{URL}/pdu", {"version": 1, "every_s": 20}).status_code == 409
    assert admin.delete(f"{URL}/pdu").status_code == 204
    assert admin.get(f"{URL}/pdu").status_code == 404


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"url": "ftp://prometheus"}, "url"),
        ({"url": "http://user:secret@prometheus"}, "url"),
        ({"url": "http://prometheus?x=1"}, "url"),
        ({"url": "http://:99999"}, "url"),
        ({"url": "prometheus:9090"}, "url"),
        ({"labels": {}}, "labels"),
        ({"labels": {"domain": "a", "node": "b"}}, "labels"),
        ({"labels": {"domain": "a", "device": "b"}}, "labels.device"),
        ({"labels": {"domain": "no label"}}, "labels.domain"),
        ({"every_s": 4}, "every_s"),
        ({"every_s": 60, "max_age_s": 30}, "max_age_s"),
        ({"scale": 0}, "scale"),
        ({"scale": True}, "scale"),
        ({"names": {"a": 1}}, "names.a"),
        ({"name": "modelled"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"kind": "snmp"}, "kind"),
        ({"query": ""}, "query"),
        ({"token": "x"}, "token"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused_at_its_field(admin, changes, path):
    answer = admin.post(URL, {**BODY, **changes})

    assert (answer.status_code, [one["path"] for one in answer.json()["errors"]]) == (400, [path])
    assert not MeterSource.objects.exists()


@pytest.mark.parametrize(
    ("role", "sees"), [("", 403), ("operator", 200), ("auditor", 200), ("power_admin", 200)]
)
def test_who_looks_after_the_facility_sees_sources_and_power_administrators_change_them(admin, role, sees):
    admin.post(URL, BODY)
    asker = client(person("max", role))

    assert asker.get(URL).status_code == asker.get(f"{URL}/pdu").status_code == sees
    wanted = {201, 204} if role == "power_admin" else {403}
    assert {
        asker.post(URL, {**BODY, "name": "two"}).status_code,
        asker.delete(f"{URL}/pdu").status_code,
    } == wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"domain_label": ""},
        {"node_label": "b"},
        {"device_label": "b"},
        {"every_s": 4},
        {"max_age_s": 1.0},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"name": "modelled"},
        {"kind": "snmp"},
    ],
)
def test_the_database_refuses_a_source_that_reads_nothing(changes):
    said = {"name": "pdu", "url": "http://p", "query": "x", "domain_label": "pdu", **changes}
    with pytest.raises(IntegrityError), transaction.atomic():
        MeterSource.objects.create(**said)


@pytest.mark.parametrize("url", ["http://[::1", "http://a b", "javascript:1", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InvalidInput):
        create_meter(draft=MeterDraft(name="p", url=url, query="x", domain_label="d"), actor=None, at=NOON)
