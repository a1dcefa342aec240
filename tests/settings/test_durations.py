"""Durations are read as Go's time.ParseDuration reads them and shown in the spelling a user would choose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.settings.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("0", 0.0),
        ("+0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("-0s", 0.0),
        ("200ms", 0.2),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("+5s", 5.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("1h1m1s1ms1us1ns", 3661.001001001),
        ("1\u00b5s", 1e-6),
        ("1\u03bcs", 1e-6),
        ("7ns", 7e-9),
        ("0.1s", 0.1),
        ("1s1s", 2.0),
    ],
)
def test_a_go_duration_is_read_as_seconds(text: str, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "'5' has no unit (one of ns, us, ms, s, m, h)"),
        ("1.5", "'1.5' has no unit (one of ns, us, ms, s, m, h)"),
        ("-5", "'-5' has no unit (one of ns, us, ms, s, m, h)"),
        ("-1s", "'-1s' is negative"),
        ("", "'' is not a duration such as 200ms, 10s or 1m30s"),
        ("s", "'s' is not a duration such as 200ms, 10s or 1m30s"),
        (".s", "'.s' is not a duration such as 200ms, 10s or 1m30s"),
        ("1 s", "'1 s' is not a duration such as 200ms, 10s or 1m30s"),
        ("1d", "'1d' is not a duration such as 200ms, 10s or 1m30s"),
        ("1S", "'1S' is not a duration such as 200ms, 10s or 1m30s"),
        ("--1s", "'--1s' is not a duration such as 200ms, 10s or 1m30s"),
        ("1m30", "'1m30' is not a duration such as 200ms, 10s or 1m30s"),
        ("1e3s", "'1e3s' is not a duration such as 200ms, 10s or 1m30s"),
        ("\u0661s", "'\u0661s' is not a duration such as 200ms, 10s or 1m30s"),
        ("9" * 90 + "s", f"'{'9' * 90}s' is not a duration such as 200ms, 10s or 1m30s"),
        ("9999999h", "'9999999h' is longer than Go's longest duration (292 years)"),
    ],
)
def test_what_go_refuses_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        parse_duration(text)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "0"),
        (0.2, "200ms"),
        (0.05, "50ms"),
        (5.0, "5s"),
        (90.0, "1m30s"),
        (600.0, "10m"),
        (1.5, "1s500ms"),
    ],
)
def test_a_duration_is_shown_in_whole_units(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_what_is_shown_reads_back_the_same(count_ns: int) -> None:
    duration_s = count_ns / 1e9
    assert parse_duration(format_duration(duration_s)) == duration_s
