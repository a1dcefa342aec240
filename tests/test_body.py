"""What is one JSON object, whose bytes its values are, and what an edit leaves alone (contract section 3)."""

from __future__ import annotations

import json
import subprocess
import sys
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.body import BadBody, Body, dump, elements
from tests.json_texts import VALUES, JsonObject, is_one_object, json_objects, members_of

ODD_SPELLINGS = (
    b' {"seed" : 12345678901234567890,\n"x":1.0, "t" :1e-7, "s":"\\u00e9 <b>&\\/ \\ud83d x",'
    b'"o":{ "zebra" :1 , "apple":[ 1 ,2 ] }, "e":"\xc3\xa9\xe2\x80\xa8\x7f" } \n'
)


def test_every_value_is_the_text_that_the_client_wrote() -> None:
    assert dict(Body.parse(ODD_SPELLINGS)) == {
        "seed": b"12345678901234567890",
        "x": b"1.0",
        "t": b"1e-7",
        "s": b'"\\u00e9 <b>&\\/ \\ud83d x"',
        "o": b'{ "zebra" :1 , "apple":[ 1 ,2 ] }',
        "e": b'"\xc3\xa9\xe2\x80\xa8\x7f"',
    }


def test_an_edit_changes_the_named_fields_and_not_a_byte_of_the_other_values() -> None:
    edited = Body.parse(ODD_SPELLINGS).edited({"x": b"2", "t": None, "new": b'{"a":null}'})
    assert edited.encode() == (
        b'{"seed":12345678901234567890,"x":2,"s":"\\u00e9 <b>&\\/ \\ud83d x",'
        b'"o":{ "zebra" :1 , "apple":[ 1 ,2 ] },"e":"\xc3\xa9\xe2\x80\xa8\x7f","new":{"a":null}}'
    )


def test_an_edit_leaves_the_body_it_was_made_of_alone() -> None:
    body = Body.parse(b'{ "a": 1 }')
    body.edited({"a": b"2", "b": b"3"})
    assert body.encode() == b'{ "a": 1 }'
    assert dict(body) == {"a": b"1"}


def test_removing_what_is_not_there_removes_nothing() -> None:
    assert Body.parse(b'{"a":1}').edited({"b": None}).encode() == b'{"a":1}'


def test_the_last_of_duplicate_keys_wins_and_one_is_forwarded() -> None:
    body = Body.parse(b'{"a":1,"b":2,"\\u0061":3}')
    assert dict(body) == {"a": b"3", "b": b"2"}
    assert body.edited({"c": b"4"}).encode() == b'{"a":3,"b":2,"c":4}'


def test_a_key_spelled_with_escapes_is_the_key() -> None:
    body = Body.parse(b'{"\\u006bv_transfer_params":{"a":1}}')
    assert body["kv_transfer_params"] == b'{"a":1}'
    assert body.edited({"kv_transfer_params": None}).encode() == b"{}"


@pytest.mark.parametrize("key", [b'"\\ud83d"', b'"\\\\"', b'"\\""', '"\u00e9"'.encode(), b'"\\n"', b'""'])
def test_odd_keys_stay_the_same_keys_in_an_edited_body(key: bytes) -> None:
    raw = b"{" + key + b":1}"
    assert json.loads(Body.parse(raw).edited({"z": b"2"}).encode()) == {json.loads(key): 1, "z": 2}


def test_decoded_values_are_for_the_few_small_fields_that_are_read() -> None:
    body = Body.parse(b'{"a": {"b": [1, "\\u00e9"]}, "n": null, "s": "\\ud83d"}')
    assert body.value("a") == {"b": [1, "\u00e9"]}
    assert body.value("n") is None
    assert body.value("absent") is None
    assert body.value("s") == "\ud83d"


def test_a_body_says_which_fields_it_has() -> None:
    body = Body.parse(b'{"a":1,"n":null}')
    assert ("a" in body, "n" in body, "x" in body, len(body)) == (True, True, False, 2)
    assert (body.get("n"), body.get("x"), body.get("x", b"null")) == (b"null", None, b"null")
    with pytest.raises(KeyError):
        body["x"]


def test_small_values_of_the_sidecar_are_dumped_compactly_and_in_order() -> None:
    assert dump({"b": 1, "a": [None, True, "x"]}) == b'{"b":1,"a":[null,true,"x"]}'


NOT_ONE_OBJECT = {
    "null": b"null",
    "an array": b"[1]",
    "an empty array": b"[]",
    "a string": b'"x"',
    "a number": b"1",
    "empty": b"",
    "white space": b" \n",
    "an open brace": b"{",
    "cut in a key": b'{"a',
    "cut after a key": b'{"a"',
    "cut in a value": b'{"a":"b',
    "cut after a value": b'{"a":1',
    "cut after a comma": b'{"a":1,',
    "a trailing comma": b'{"a":1,}',
    "two objects": b'{"a":1}{"b":2}',
    "text after the object": b'{"a":1} x',
    "a NUL after the object": b'{"a":1}\x00',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":[Infinity]}',
    "minus Infinity": b'{"a":-Infinity}',
    "single quotes": b"{'a':1}",
    "a bare key": b"{a:1}",
    "a number as key": b"{1:1}",
    "a comment": b'{"a":1}//x',
    "a leading zero": b'{"a":01}',
    "a leading plus": b'{"a":+1}',
    "a bare fraction": b'{"a":.5}',
    "an empty fraction": b'{"a":1.}',
    "an empty exponent": b'{"a":1e}',
    "a lone minus": b'{"a":-}',
    "hexadecimal": b'{"a":0x1}',
    "a capital literal": b'{"a":True}',
    "an unknown escape": b'{"a":"\\x41"}',
    "a short escape": b'{"a":"\\u12"}',
    "a control character": b'{"a":"\x01"}',
    "a raw line end in a string": b'{"a":"\n"}',
    "white space that JSON has not": b'\x0b{"a":1}',
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a":1}'.encode("utf-16-le"),
    "not UTF-8": b"\xff\xfe",
    "not UTF-8 in a value": b'{"a":"\xff"}',
    "not UTF-8 in a key": b'{"\xc3":1}',
    "overlong UTF-8": b'{"a":"\xc0\xaf"}',
    "a surrogate as UTF-8": b'{"a":"\xed\xa0\xbd"}',
}


@pytest.mark.parametrize("raw", NOT_ONE_OBJECT.values(), ids=NOT_ONE_OBJECT.keys())
def test_what_is_not_one_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadBody):
        Body.parse(raw)


@pytest.mark.parametrize("raw", NOT_ONE_OBJECT.values(), ids=NOT_ONE_OBJECT.keys())
def test_a_lone_surrogate_makes_no_text_acceptable_that_is_not(raw: bytes) -> None:
    for text in (raw.replace(b'{"a":', b'{"s":"\\ud83d","a":'), raw.replace(b"{", b'{"\\uD83D":1,', 1)):
        if text != raw and not is_one_object(text):
            with pytest.raises(BadBody):
                Body.parse(text)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'], ids=["arrays", "objects", "both"])
@pytest.mark.parametrize("start", [b'{"x":', b'{"s":"\\ud83d","x":'], ids=["plain", "lone surrogate"])
def test_nesting_that_is_too_deep_to_check_is_refused_and_breaks_nothing(
    start: bytes, opening: bytes
) -> None:
    for raw in (start + opening * 100_000, start + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        with pytest.raises(BadBody):
            Body.parse(raw)
    assert len(Body.parse(start + b"[" * 200 + b"]" * 200 + b"}")["x"]) == 400


@pytest.mark.parametrize("start", [b'{"x":', b'{"s":"\\ud83d","x":'], ids=["plain", "lone surrogate"])
def test_numbers_of_any_length_are_kept_as_they_are(start: bytes) -> None:
    for digits in (b"9" * 6000, b"-1." + b"1" * 6000, b"1e999", b"1" * 6000 + b"E-5"):
        raw = start + digits + b"}"
        assert Body.parse(raw)["x"] == digits
        assert Body.parse(raw).encode() == raw


def test_a_refusal_says_why_and_never_repeats_the_text() -> None:
    for raw in (b'{"a":s3cret}', b'["s3cret"]', b'{"a":"\\ud83d s3cret', b'{"s3cret":"\xff"}', b"s3cret"):
        with pytest.raises(BadBody, match=r".+") as refusal:
            Body.parse(raw)
        assert "s3cret" not in str(refusal.value)


@settings(max_examples=100, deadline=None)
@given(made=json_objects())
@example(made=JsonObject(b"{}", ()))
def test_any_object_is_read_value_by_value_and_unedited_goes_on_identically(made: JsonObject) -> None:
    body = Body.parse(made.text)
    assert list(body.items()) == list(made.fields.items())
    if len(made.fields) == len(made.members):
        assert body.encode() == made.text
    else:  # of duplicate keys one goes on
        assert members_of(body.encode()) == list(made.fields.items())


@settings(max_examples=100, deadline=None)
@given(made=json_objects(), new=VALUES, position=st.integers(0, 7), remove=st.booleans())
def test_any_edit_of_any_object_keeps_every_other_value_and_the_order(
    made: JsonObject, new: str, position: int, remove: bool
) -> None:
    keys = list(made.fields)
    key = keys[position] if position < len(keys) else "not there before"
    edited = Body.parse(made.text).edited({key: None if remove else new.encode()})
    expected = dict(made.fields)
    if remove:
        expected.pop(key, None)
    else:
        expected[key] = new.encode()
    assert members_of(edited.encode()) == list(expected.items())
    assert list(edited.items()) == list(expected.items())
    assert list(Body.parse(edited.encode()).items()) == list(expected.items())


_TOKENS = st.sampled_from(
    [bytes((byte,)) for byte in b'{}[]:,"\\0123.-+eE nulltrefas\n\t\x00\x1f\x7f\xc3\xa9\xed\xa0\xff']
    + [b'"a"', b'"\\ud83d"', b"\\u", b"null", b"NaN", b"1", b'{"a":', b'"\\', b"Infinity", b"\xef\xbb\xbf"]
)


@st.composite
def broken_objects(draw: st.DrawFn) -> bytes:
    """An object with a few of its bytes cut out or replaced."""
    text = draw(json_objects()).text
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 2))
        text = text[:at] + draw(st.one_of(st.just(b""), _TOKENS)) + text[at + cut :]
    return text


@settings(max_examples=200, deadline=None)
@given(raw=st.one_of(broken_objects(), st.lists(_TOKENS, max_size=12).map(b"".join), st.binary(max_size=20)))
def test_any_bytes_are_accepted_exactly_when_they_are_one_json_object(raw: bytes) -> None:
    try:
        body = Body.parse(raw)
    except BadBody:
        assert not is_one_object(raw)
        return
    assert is_one_object(raw)
    written = members_of(raw)
    assert list(body.items()) == list(dict(written).items())
    if len(written) == len(dict(written)):  # of duplicate keys one goes on
        assert body.encode() == raw


@pytest.mark.parametrize(
    ("raw", "one"),
    [
        (b'{"a":1,"b":2,"a":3}', b'{"a":3,"b":2}'),
        (b'{"a":1,"a":1}', b'{"a":1}'),
        (b'{"a":1,"a":12}', b'{"a":12}'),
        (b'{"a":12,"a":1}', b'{"a":1}'),
        (b'{"a":1,"\\u0061":1}', b'{"a":1}'),
        (b'{"a":"\\ud83d","b":2,"a":1}', b'{"a":1,"b":2}'),
    ],
)
def test_of_duplicate_keys_only_the_last_is_encoded_even_when_nothing_is_edited(
    raw: bytes, one: bytes
) -> None:
    assert Body.parse(raw).encode() == one


def test_lone_surrogates_cost_no_more_than_other_text() -> None:
    started_s = process_time()
    Body.parse(b'{"m":"' + b"x" * 10_000_000 + b'\\ud83d","k":1}')
    Body.parse(b"{" + b" " * 10_000_000 + b'"a":"\\ud83d"}')
    assert process_time() - started_s < 2  # seconds; the letter by letter way took five times as long
    started_s = process_time()
    Body.parse(b'{"m":"' + b"\\ud83d\\uD83D" * 1_000_000 + b'"}')
    assert process_time() - started_s < 0.2  # seconds; looking at each took 0.35


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (rb'"\ud83d\ude00 \uD83D \udC00\uDBFF"', True),
        (rb'"\\ud83d \ud83d"', True),
        (rb'"\\\ud83d"', True),
        (rb'"\ud83d \ud8"', False),
        (rb'"\ud83d \udx00"', False),
        (rb'"\ud83d \\\\\"', False),
    ],
)
def test_a_lone_surrogate_makes_no_escape_another(value: bytes, *, valid: bool) -> None:
    for raw in (b'{"a":%b}' % value, b'{"a":%b,"pad":"%b"}' % (value, b"x" * 600_000)):
        if valid:
            assert Body.parse(raw)["a"] == value
            assert elements(b"[%b , 1]" % value) == [value, b"1"]
        else:
            with pytest.raises(BadBody):
                Body.parse(raw)


def test_too_many_fields_are_refused() -> None:
    text = b"{" + b",".join(b'"k%d":1' % number for number in range(10_001)) + b"}"
    with pytest.raises(BadBody, match="10000 fields"):
        Body.parse(text)


LONG_KEYS = """
import resource
from sidecar.body import Body
texts = [b'{"a":1,"' + b"k" * 4_000_000 + b'":%b}' % value for value in (b"2", b'"\\\\ud83d"')]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert [Body.parse(text).encode() == text for text in texts] == [True, True]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_long_key_costs_a_few_times_its_length_in_memory_and_no_more() -> None:
    run = subprocess.run([sys.executable, "-c", LONG_KEYS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 150_000  # KiB; backtracking took over 500,000


_ARRAYS = st.lists(st.tuples(st.sampled_from(("", " ", "\n\t")), VALUES), max_size=5)


@settings(max_examples=100, deadline=None)
@given(parts=_ARRAYS)
def test_an_array_is_split_into_the_clients_own_bytes(parts: list[tuple[str, str]]) -> None:
    raw = "[" + ",".join(space + value + space for space, value in parts) + "]"
    assert elements(raw.encode()) == [value.encode() for _, value in parts]


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"{}", b'"x"', b"7", b"[", b"[1,]", b"[1 2]", b'["\\ud83d",]', b"[" * 100_000, b"[NaN]"],
)
def test_what_is_no_array_is_refused(raw: bytes) -> None:
    with pytest.raises(BadBody):
        elements(raw)


def test_a_lone_surrogate_of_an_engines_goes_on_as_it_came() -> None:
    text = b'{"remote_engine_id":"e\\ud83d","n":1}'
    assert dump(Body.parse(b'{"x":%b}' % text).value("x")) == text


def test_a_value_that_holds_too_many_is_not_decoded() -> None:
    body = Body.parse(b'{"a":[%b],"b":[%b]}' % (b",".join([b"[1]"] * 50_000), b",".join([b"[1]"] * 49_000)))
    with pytest.raises(BadBody, match=r'^field "a" holds more than 100000 values$'):
        body.value("a")
    assert body.value("b") == [[1]] * 49_000
