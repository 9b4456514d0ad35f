"""Data sets, their copies, and transfers."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden, InvalidInput, NameTaken, NotFound
from apps.events.models import Event
from apps.inventory.models import Cluster
from apps.inventory.tests.builders import domain, node
from apps.staging import selectors, services
from apps.staging.models import Copy, Store, Transfer
from apps.teams.tests.builders import LATER, NOON, person

pytestmark = pytest.mark.django_db


@pytest.fixture
def stores():
    return [domain(name, "storage") for name in ("s1", "s2")]


def name_it(name="imagenet", at=(), **more):
    more = {"actor": None, "at": NOON, **more}
    return services.create_dataset(name=name, size_gib=150.0, at_domains=at, **more)


def where(dataset):
    return sorted(Copy.objects.filter(dataset=dataset).values_list("domain__name", flat=True))


def test_copies_lie_where_they_are_said_to(stores):
    made = name_it(at=["s1"])
    services.set_copies(dataset_id=made.pk, at_domains=["s2"], actor=None, at=NOON)

    assert where(made) == ["s2"]


def test_a_copy_lies_in_storage_only(stores):
    domain("leaf", "leaf")
    with pytest.raises(InvalidInput) as caught:
        name_it(at=["s1", "leaf", "nowhere"])
    assert [fault["path"] for fault in caught.value.errors] == ["at[1]", "at[2]"]


def test_names_are_taken_once():
    name_it()
    with pytest.raises(NameTaken):
        name_it()


def test_a_transfer_that_arrives_is_a_copy(stores):
    made = name_it()
    asked = {"dataset_id": made.pk, "to_domain_id": stores[0].pk, "expected_end_at": LATER, "at": NOON}
    transfer = services.start_transfer(**asked)
    assert services.start_transfer(**asked) == transfer
    services.end_transfer(transfer_id=transfer.pk, at=LATER)
    services.end_transfer(transfer_id=transfer.pk, at=LATER + timedelta(hours=1))

    assert where(made) == ["s1"]
    assert Event.objects.filter(kind="dataset.transfer_ended").count() == 1


def test_a_transfer_that_failed_is_none(stores):
    made = name_it()
    transfer = services.start_transfer(
        dataset_id=made.pk, to_domain_id=stores[0].pk, expected_end_at=LATER, at=NOON
    )
    services.end_transfer(transfer_id=transfer.pk, at=LATER, error="disk full")

    assert where(made) == []


def test_what_is_on_its_way_is_not_forgotten(stores):
    made = name_it()
    services.start_transfer(dataset_id=made.pk, to_domain_id=stores[0].pk, expected_end_at=LATER, at=NOON)
    with pytest.raises(services.DatasetInUse):
        services.delete_dataset(dataset_id=made.pk, actor=None, at=NOON)


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_only_operators_name_data_sets(role):
    with pytest.raises(Forbidden):
        name_it(actor=person("max", role))


# Stores, and what a pass is told ---------------------------------------------------------------------------------


@pytest.fixture
def roots(settings, tmp_path):
    settings.SWITCHYARD_STORE_ROOTS = [str(tmp_path), "s3://sets/ours"]
    return tmp_path


def store(base_uri, of="s1", **more):
    more = {"rate_gib_per_s": 2.0, "actor": None, "at": NOON, **more}
    return services.create_store(domain=of, base_uri=base_uri, **more)


@pytest.mark.parametrize(
    ("base_uri", "more", "path"),
    [
        ("/etc", {}, "base_uri"),
        ("{root}/../etc", {}, "base_uri"),
        ("{root}x", {}, "base_uri"),
        ("s3://sets/theirs", {}, "base_uri"),
        ("s3://key:secret@sets/ours", {}, "base_uri"),
        ("", {}, "base_uri"),
        ("{root}", {"profile": "p"}, "profile"),
        ("{root}", {"is_simulated": True}, "base_uri"),
    ],
)
def test_a_store_that_makes_no_sense_is_refused_at_its_field(stores, roots, base_uri, more, path):
    with pytest.raises(InvalidInput) as caught:
        store(base_uri.replace("{root}", str(roots)), **more)
    assert [fault["path"] for fault in caught.value.errors] == [path]


def test_a_store_of_nodes_that_really_run_jobs_is_never_simulated(stores):
    node("n1", storage=stores[0])
    Cluster.objects.update(backend="local")
    with pytest.raises(InvalidInput) as caught:
        store("", is_simulated=True)
    assert [fault["path"] for fault in caught.value.errors] == ["is_simulated"]


def test_a_domain_has_one_store(stores, roots):
    store(f"{roots}/a")
    with pytest.raises(services.StoreExists):
        store(f"{roots}/b")


def test_a_store_is_not_forgotten_while_something_is_on_its_way_to_it(stores, roots):
    made = store(f"{roots}/a")
    services.request_stage(dataset_id=name_it().pk, to_domain_id=stores[0].pk, for_job_id=None, at=NOON)
    with pytest.raises(services.StoreInUse):
        services.delete_store(store_id=made.pk, actor=None, at=NOON)


def test_folders_of_the_site_are_not_told_to_everybody(stores, roots):
    store(f"{roots}/secret-place")
    event = Event.objects.get(kind="store.created")
    assert event.is_private
    assert str(roots) not in f"{event.data}{event.reason}{event.subject_name}"


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_only_operators_name_stores_and_bring_data(stores, roots, role):
    made, asker = name_it(at=["s1"]), person("max", role)
    with pytest.raises(Forbidden):
        store(f"{roots}/a", actor=asker)
    with pytest.raises(Forbidden):
        services.stage_by_hand(dataset_id=made.pk, to_domain="s2", actor=asker, at=NOON)


def test_a_copy_may_lie_elsewhere_in_its_store_and_nowhere_else(stores, roots):
    store(f"{roots}/a")
    made = name_it(at=["s1", "s2"], uris={"s1": f"{roots}/a/2012/imagenet"})
    assert Copy.objects.get(domain=stores[0]).uri == f"{roots}/a/2012/imagenet"
    for uris in ({"s1": f"{roots}/b"}, {"s2": f"{roots}/a/x"}, {"s3": f"{roots}/a/x"}):
        with pytest.raises(InvalidInput) as caught:
            services.set_copies(dataset_id=made.pk, at_domains=["s1", "s2"], uris=uris, actor=None, at=NOON)
        assert [fault["path"] for fault in caught.value.errors] == [f"uris.{next(iter(uris))}"]


def test_naming_the_copies_again_keeps_where_they_lie(stores, roots):
    store(f"{roots}/a")
    made = name_it(at=["s1"], uris={"s1": f"{roots}/a/x"})
    services.set_copies(dataset_id=made.pk, at_domains=["s1", "s2"], actor=None, at=NOON)
    assert Copy.objects.get(domain=stores[0]).uri == f"{roots}/a/x"


def test_nothing_is_brought_where_a_copy_lies_already(stores):
    made = name_it(at=["s1"])
    asked = {"dataset_id": made.pk, "to_domain_id": stores[0].pk, "for_job_id": 1, "at": NOON}
    assert services.request_stage(**asked) is None
    with pytest.raises(services.DatasetInUse):
        services.stage_by_hand(dataset_id=made.pk, to_domain="s1", actor=None, at=NOON)


def test_data_is_brought_to_storage_alone(stores):
    leaf = domain("leaf", "leaf")
    with pytest.raises(NotFound):
        services.request_stage(dataset_id=name_it().pk, to_domain_id=leaf.pk, for_job_id=1, at=NOON)


def test_the_picture_for_a_pass_says_what_lies_where_and_what_is_on_its_way(
    stores, roots, django_assert_num_queries
):
    s1, s2 = stores
    store(f"{roots}/a", most_gib_per_s=0.5)
    here, gone = name_it(at=["s1"]), name_it("given-up", at=["s1"])
    under_way = services.request_stage(dataset_id=here.pk, to_domain_id=s2.pk, for_job_id=1, at=NOON)
    failed = services.request_stage(dataset_id=gone.pk, to_domain_id=s2.pk, for_job_id=1, at=NOON)
    services.end_transfer(transfer_id=failed.pk, at=NOON, error="disk full")

    with django_assert_num_queries(5):
        picture = selectors.staging_picture(NOON)

    assert picture.datasets == (
        selectors.DatasetRow(
            id=here.pk,
            name="imagenet",
            size_gib=150.0,
            at=frozenset({s1.pk}),
            arrives_at={s2.pk: under_way.expected_end_at},
        ),
        selectors.DatasetRow(
            id=gone.pk,
            name="given-up",
            size_gib=150.0,
            at=frozenset({s1.pk}),
            rests_until_at={s2.pk: NOON + selectors.RESTS_FOR},
        ),
    )
    # Nothing stands behind s2: nothing can be carried there.
    assert picture.roads.rate_gib_per_s({s1.pk}, s2.pk) is None


def test_without_data_sets_a_pass_asks_once(stores, django_assert_num_queries):
    with django_assert_num_queries(1):
        assert selectors.staging_picture(NOON).datasets == ()


def test_roads_lead_between_stores_at_the_slower_rate_and_to_where_transfers_are_played(stores, roots):
    s1, s2 = stores
    played = domain("played", "storage")
    node(storage=played)
    store(f"{roots}/a", rate_gib_per_s=2.0)
    services.create_store(
        domain="s2", base_uri=f"{roots}/b", rate_gib_per_s=8.0, most_gib_per_s=0.5, actor=None, at=NOON
    )
    name_it(at=["s1"])
    roads = selectors.staging_picture(NOON).roads

    assert roads.rate_gib_per_s({s1.pk}, s2.pk) == 0.5
    assert roads.rate_gib_per_s({s1.pk}, s1.pk) is None
    assert roads.rate_gib_per_s({s1.pk, s2.pk}, played.pk) == 2.0
    assert roads.rate_gib_per_s({played.pk}, s1.pk) is None
    assert roads.rate_gib_per_s((), played.pk) is None


# What the database refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"base_uri": "ftp://x/y"},
        {"base_uri": "s3://key:secret@sets/a"},
        {"base_uri": "/data/../etc"},
        {"base_uri": ""},
        {"is_simulated": True},
        {"profile": "p"},
        {"rate_gib_per_s": 0},
        {"rate_gib_per_s": float("nan")},
        {"most_gib_per_s": -1},
    ],
)
def test_the_database_refuses_a_store_that_makes_no_sense(stores, roots, changes):
    store(f"{roots}/a")
    with pytest.raises(IntegrityError), transaction.atomic():
        Store.objects.update(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes_done": -1},
        {"bytes_done": 2, "bytes_total": 1},
        {"bytes_per_s": float("nan")},
        {"attempts": 1},
        {"mover": "rsync"},
        {"handle": "x"},
        {"next_attempt_at": LATER},
        {"error": "disk full"},
        {"ended_at": NOON - timedelta(seconds=1)},
        {"for_job_id": 0},
    ],
)
def test_the_database_refuses_a_transfer_that_makes_no_sense(stores, changes):
    services.request_stage(dataset_id=name_it().pk, to_domain_id=stores[0].pk, for_job_id=1, at=NOON)
    with pytest.raises(IntegrityError), transaction.atomic():
        Transfer.objects.update(**changes)
