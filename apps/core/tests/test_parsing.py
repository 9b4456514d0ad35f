"""Strict JSON."""

import io
import json
from types import SimpleNamespace

import pytest
from django.core.exceptions import RequestDataTooBig
from hypothesis import given
from hypothesis import strategies as st

from apps.core.api.parsing import BadJSON, StrictJSONParser, loads_strict
from apps.core.errors import TooLarge
from apps.core.uploads import NoUploads

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_was_written_is_read_back(value):
    assert loads_strict(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": 1, "a": 1}',
        '{"a": {"b": 1, "b": 2}}',
        '{"a": 1} x',
        '{"a": 1}{}',
        '{"a": 1,}',
        "{'a': 1}",
        '{"a": 01}',
        "",
        "{",
        '{"a": "\n"}',
        "[" * 5000 + "]" * 5000,
        '{"a": ' + "9" * 5000 + "}",
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_json_that_readers_would_understand_differently_is_refused(text):
    with pytest.raises(BadJSON):
        loads_strict(text)


def test_brackets_inside_strings_are_no_nesting():
    value = ["[" * 200, '\\"{' * 100]

    assert loads_strict(json.dumps(value)) == value


class Stream(io.BytesIO):
    """Counts what is read of it."""

    n_read = 0

    def read(self, size=-1):
        got = super().read(size)
        self.n_read += len(got)
        return got


def context(length, *, takes_bulk=False):
    meta = {} if length is None else {"CONTENT_LENGTH": str(length)}
    return {"request": SimpleNamespace(META=meta), "view": SimpleNamespace(takes_bulk=takes_bulk)}


@pytest.mark.parametrize(("announced", "n_read"), [(5000, 0), (None, 1001), ("junk", 1001), (10, 1001)])
def test_a_body_is_read_no_further_than_its_limit(settings, announced, n_read):
    settings.SWITCHYARD_LONGEST_BODY = 1000
    stream = Stream(json.dumps({"a": "x" * 5000}).encode())

    with pytest.raises(TooLarge):
        StrictJSONParser().parse(stream, parser_context=context(announced))
    assert stream.n_read == n_read


def test_many_at_once_may_be_longer_than_one(settings):
    settings.SWITCHYARD_LONGEST_BODY, settings.SWITCHYARD_LONGEST_BULK_BODY = 1000, 9000
    text = json.dumps({"a": "x" * 5000}).encode()

    assert StrictJSONParser().parse(io.BytesIO(text), parser_context=context(len(text), takes_bulk=True))


def test_a_body_as_long_as_the_limit_is_read(settings):
    text = json.dumps({"a": "x" * 500}).encode()
    settings.SWITCHYARD_LONGEST_BODY = len(text)

    assert StrictJSONParser().parse(io.BytesIO(text), parser_context=context(len(text)))


def test_files_in_a_form_count_and_are_dropped(settings, rf):
    settings.FILE_UPLOAD_HANDLERS = ["apps.core.uploads.NoUploads"]
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    small = rf.post("/", {"name": "x", "file": io.BytesIO(b"y" * 100)})
    assert (small.POST["name"], dict(small.FILES)) == ("x", {})
    assert isinstance(small.upload_handlers[0], NoUploads)

    with pytest.raises(RequestDataTooBig):
        _ = rf.post("/", {"file": io.BytesIO(b"y" * 5000)}).POST


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_named_by_its_path(word: str) -> None:
    with pytest.raises(BadJSON) as caught:
        loads_strict('{"jobs": [{"name": "a"}, {"cpus": WORD}]}'.replace("WORD", word))

    assert [(e["path"], e["code"]) for e in caught.value.errors] == [("jobs[1].cpus", "not_finite")]


@pytest.mark.parametrize(
    ("text", "is_deep"),
    [
        ("[" * 65 + "]" * 65, True),
        ("[" * 64 + "]" * 64, False),
        ("[" + "[]," * 200 + "[]]", False),
        ('["' + "[" * 200 + '"]', False),
        ('["\\"' + "[" * 200 + '"]', False),
        ('["\\\\", ' + "[" * 64 + "]" * 64 + "]", True),
        ('"' + '\\"' * 200_000 + "[" * 100, False),  # a string without an end: wrong, but not for its depth
        ('"' + '\\"' * 200_000 + "[" * 100 + "\\", False),
    ],
)
def test_only_brackets_outside_strings_make_it_deep(text, is_deep):
    try:
        loads_strict(text)
        said = ""
    except BadJSON as error:
        said = str(error)
    assert ("nested" in said) == is_deep
