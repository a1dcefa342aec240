"""The walk over the members of an object finds what any reader finds, and stops at a bound."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.body import BadBody, Body
from sidecar.scan import MOST_KEYS, members
from tests.json_texts import JsonObject, is_one_object, json_objects, members_of
from tests.test_body import NOT_ONE_OBJECT, broken_objects

LARGE = b'"pad":"%b",' % (b"x" * 600_000)


def walked(text: bytes) -> dict[str, bytes] | None:
    found = members(text, text)
    return None if found is None else {key: bytes(value) for key, value in found.items()}


@settings(max_examples=60, deadline=None)
@given(made=json_objects())
def test_any_object_without_lone_surrogates_is_walked_value_by_value(made: JsonObject) -> None:
    if made.fields and b"\\u" not in made.text:
        found = walked(made.text)
        assert found is not None
        assert list(found.items()) == list(made.fields.items())


@settings(max_examples=80, deadline=None)
@given(raw=st.one_of(broken_objects(), st.binary(max_size=20)))
def test_what_is_walked_is_one_object_with_these_fields(raw: bytes) -> None:
    try:
        raw.decode()  # as Body.parse does first
        found = walked(raw)
    except UnicodeDecodeError:
        return
    if found is not None:
        assert is_one_object(raw)
        assert list(found.items()) == list(dict(members_of(raw)).items())


@pytest.mark.parametrize("raw", NOT_ONE_OBJECT.values(), ids=NOT_ONE_OBJECT.keys())
def test_what_is_not_one_object_is_refused_when_it_is_large_too(raw: bytes) -> None:
    large = raw.replace(b"{", b"{" + LARGE, 1) if b"{" in raw else raw + b" " * 600_000
    with pytest.raises(BadBody):
        Body.parse(large)


def test_a_large_body_is_the_clients_own_bytes() -> None:
    text = b' {"a" : 1 ,' + LARGE + b'"\\u0062":[ 1 ,{"c":"\\u00e9}"} ]\n,"\xc3\xa9":"\xc3\xa9","a":-1.0 \n} '
    expected = {"a": b"-1.0", "pad": LARGE[6:-1], "b": b'[ 1 ,{"c":"\\u00e9}"} ]', "\u00e9": b'"\xc3\xa9"'}
    for raw in (text, bytearray(text)):
        body = Body.parse(raw)
        assert list(body.items()) == list(expected.items())
        edited = body.edited({"pad": None}).encode()
        assert edited == b'{"a":-1.0,"b":[ 1 ,{"c":"\\u00e9}"} ],"\\u00e9":"\xc3\xa9"}'
    once = text.replace(b',"a":-1.0', b"")
    assert Body.parse(once).encode() == once
    assert dict(Body.parse(b"{" + b" " * 600_000 + b"}")) == {}


def test_as_many_fields_as_there_may_be_are_read_and_one_more_is_refused() -> None:
    most = b"{" + LARGE + b",".join([b'"k%d":%d' % (number, number) for number in range(1, MOST_KEYS)]) + b"}"
    assert len(Body.parse(most)) == MOST_KEYS
    assert Body.parse(most)["k9999"] == b"9999"
    with pytest.raises(BadBody, match=r"^the body has more than 10000 fields$"):
        Body.parse(most[:-1] + b',"k":1}')


def test_a_million_fields_are_refused_before_they_are_made() -> None:
    fields = b",".join([b'"k%d":1' % number for number in range(1_000_000)])
    for text in (
        b"{" + fields + b"}",
        b"{" + fields + b',"x":"\\ud83d"}',
        b'{"x":"\\ud83d",' + fields + b"]",
    ):
        began_s = process_time()
        with pytest.raises(BadBody, match="10000 fields"):
            Body.parse(text)
        assert process_time() - began_s < 0.2  # seconds; making them took 0.5, with a lone surrogate 2.6


@pytest.mark.parametrize("end", [b"]}", b"],}"], ids=["an object", "a broken one"])
def test_values_beside_lone_surrogates_are_not_made_either(end: bytes) -> None:
    text = b'{"\\ud83d":1,"\\ud83e":[' + b",".join([b"[]"] * 2_000_000) + end
    began_s = process_time()
    if end == b"]}":
        assert list(Body.parse(text)) == ["\ud83d", "\ud83e"]
    else:
        with pytest.raises(BadBody):
            Body.parse(text)
    assert process_time() - began_s < 0.4  # seconds; making them took 1.0
