"""Strict JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.api.parsing import BadJSON, loads_strict

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
