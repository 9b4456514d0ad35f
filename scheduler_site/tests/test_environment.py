"""What the environment may say."""

import stat

import pytest

from scheduler_site import environment


def test_a_database_is_named_by_url():
    named = environment.database("postgresql://ann:s%40cret@db.example:6543/yard?sslmode=require")

    assert (named["USER"], named["PASSWORD"], named["HOST"], named["PORT"]) == (
        "ann",
        "s@cret",
        "db.example",
        "6543",
    )
    assert (named["NAME"], named["OPTIONS"]) == ("yard", {"sslmode": "require"})


def test_a_socket_folder_is_a_host():
    assert environment.database("postgresql://postgres@/yard?host=/run/pg")["HOST"] == "/run/pg"


@pytest.mark.parametrize("url", ["sqlite:///x.db", "mysql://x/y", "postgresql://host", "postgresql://host/"])
def test_another_database_is_refused_in_words(url):
    with pytest.raises(environment.BadEnvironment, match="DATABASE_URL"):
        environment.database(url)


def test_a_secret_key_is_made_once_for_its_owner_alone(tmp_path):
    first = environment.secret_key(tmp_path / "var", {})

    assert environment.secret_key(tmp_path / "var", {}) == first
    assert len(first) >= 50
    assert stat.S_IMODE((tmp_path / "var" / "secret-key").stat().st_mode) == 0o600


def test_a_given_secret_key_is_taken(tmp_path):
    assert environment.secret_key(tmp_path, {"SECRET_KEY": "given"}) == "given"
    assert list(tmp_path.iterdir()) == []


def test_a_flag_that_is_neither_yes_nor_no_is_refused(monkeypatch):
    monkeypatch.setenv("HTTPS", "maybe")
    with pytest.raises(environment.BadEnvironment, match="HTTPS"):
        environment.flag("HTTPS", False)


@pytest.mark.parametrize(
    ("environ", "hosts", "is_https", "url"),
    [
        ({}, [], False, "http://127.0.0.1:8000"),
        ({"PORT": "8123"}, [], False, "http://127.0.0.1:8123"),
        ({"PORT": "8123"}, [".example.org", "yard.example.org"], True, "https://yard.example.org"),
        ({}, ["*"], False, "http://127.0.0.1:8000"),
        ({"SWITCHYARD_URL": "https://a.example/"}, ["b.example"], True, "https://a.example"),
    ],
)
def test_jobs_are_told_where_the_site_is(environ, hosts, is_https, url):
    assert environment.own_url(hosts, is_https=is_https, environ=environ) == url
