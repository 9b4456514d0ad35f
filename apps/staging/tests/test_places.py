"""Which addresses mean something, and which lead out of a store."""

import pytest

from apps.staging.movers.base import scrubbed
from apps.staging.movers.places import BadAddress, Location, joined, parse, require_within


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("/data/sets/", Location("file", "", "/data/sets")),
        ("file:///data/a%20b", Location("file", "", "/data/a b")),
        ("node7:/data", Location("ssh", "node7", "/data")),
        ("mover@node7.hall:/data", Location("ssh", "mover@node7.hall", "/data")),
        ("s3://sets", Location("s3", "sets", "")),
        ("s3://sets/a/b/", Location("s3", "sets", "a/b")),
    ],
)
def test_an_address_is_taken_apart(uri, found):
    assert parse(uri) == found


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "data",
        "../data",
        "/data/../etc",
        "/data/./x",
        "/data//x",
        "//host/x",
        "file://host/x",
        "file:///data/%2e%2e/etc",
        "file:///data/%0a",
        "/data/\n",
        "-oProxyCommand=x:/data",
        "node7:data",
        "node7::module",
        "user:password@node7:/data",
        "rsync://node7/data",
        "http://node7/data",
        "s3://key:secret@sets/a",
        "s3://sets/../a",
        "s3:///a",
        "s3://UPPER/a",
        "/data/.switchyard-x",
        "/" + "x" * 1000,
    ],
)
def test_what_means_nothing_is_refused(uri):
    with pytest.raises(BadAddress):
        parse(uri)


@pytest.mark.parametrize(
    ("uri", "base"),
    [
        ("/data", "/data"),
        ("/database/x", "/data"),
        ("/data/../x", "/data"),
        ("file:///data/..%2fx", "/data"),
        ("node8:/data/x", "node7:/data"),
        ("/data/x", "node7:/data"),
        ("s3://sets/ab/x", "s3://sets/a"),
        ("s3://other/a/x", "s3://sets/a"),
    ],
)
def test_what_lies_outside_a_store_is_refused(uri, base):
    with pytest.raises(BadAddress):
        require_within(uri, base)


@pytest.mark.parametrize("base", ["/data", "/", "file:///a%20b", "node7:/data", "s3://sets", "s3://sets/a/"])
@pytest.mark.parametrize("name", ["imagenet", "a b%20c", "é?#", "..x"])
def test_a_name_below_a_base_lies_within_it(base, name):
    found = require_within(joined(base, name), base)
    assert found.path.rpartition("/")[2] == name


@pytest.mark.parametrize(
    "text",
    [
        "Could not connect to http://me:hidden@store/x",
        "refused: X-Amz-Signature=hidden",
        "AWS_SECRET_ACCESS_KEY=hidden",
    ],
)
def test_a_key_in_what_a_program_says_is_taken_out(text):
    assert "hidden" not in scrubbed(text)


def test_what_a_program_says_becomes_one_line_for_a_screen():
    assert scrubbed("a\n\x1b[31m b\x00") == "a ?[31m b?"
