"""Routes read from the headers of the endpoint picker (contract sections 1 and 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.endpoint import Endpoint
from sidecar.errors import BadRequest
from sidecar.plan import Peer
from sidecar.routing import NoPull, Route, Rules, read

PRE, PRE_NEW = b"x-prefiller-host-port", b"x-llm-d-prefiller-host-port"
SRC, SRC_NEW = b"x-kv-cache-source-host-port", b"x-llm-d-kv-cache-source-host-port"
ENC, ENC_NEW = b"x-encoder-hosts-ports", b"x-llm-d-encoder-hosts-ports"
DP = b"x-data-parallel-host-port"

DECODER = Endpoint("localhost", 8200)
OWN = Endpoint("10.0.0.1", 8000)
RULES = Rules(decoder=DECODER, own=OWN, base_port=8000, p2p_port=7777, pulls=True)
NO_PULLS = Rules(decoder=DECODER, own=Endpoint("10.0.0.1", 8000), base_port=8000, p2p_port=7777)
SAMPLING = Rules(decoder=DECODER, own=None, base_port=8000, p2p_port=7777, sample=True)

Lines = list[tuple[bytes, bytes]]


def never(count: int) -> int:
    """The random choice of a sidecar that must not choose."""
    raise AssertionError(f"chose among {count}")


def peer(host: str, port: int, p2p_port: int = 7777) -> Peer:
    return Peer(Endpoint(host, port), p2p_port)


def prefiller_of(lines: Lines) -> tuple[str | None, int]:
    route = read(lines, RULES, never)
    return route.prefiller.endpoint.netloc if route.prefiller else None, route.prefill_candidates


def test_without_routing_headers_the_local_engine_answers() -> None:
    assert read([(b"host", b"x"), (b"authorization", b"k")], RULES, never) == Route(DECODER, own=OWN)


def test_headers_that_route_nowhere_here_change_nothing() -> None:
    assert read([(ENC, b"10.0.0.9:8000"), (DP, b" ")], RULES, never) == Route(DECODER, own=OWN)


PREFILLERS: dict[str, tuple[Lines, str | None, int]] = {
    "legacy": ([(PRE, b"a:1")], "a:1", 1),
    "new": ([(PRE_NEW, b"a:1")], "a:1", 1),
    "any case": ([(b"X-Prefiller-Host-Port", b"a:1")], "a:1", 1),
    "legacy wins over new": ([(PRE_NEW, b"evil:1"), (PRE, b"a:1")], "a:1", 1),
    "empty legacy gives way to new": ([(PRE, b""), (PRE_NEW, b"a:1")], "a:1", 1),
    "blank legacy gives way to new": ([(PRE, b"  "), (PRE_NEW, b"a:1")], "a:1", 1),
    "both empty": ([(PRE, b""), (PRE_NEW, b" ")], None, 0),
    "only commas": ([(PRE, b" , ,, ")], None, 0),
    "one line is split": ([(PRE, b"a:1,b:2,c:3")], "a:1", 3),
    "spaces are trimmed": ([(PRE, b" \t a:1 ,\tb:2 ")], "a:1", 2),
    "empty items are dropped": ([(PRE, b",, ,a:1,,b:2,")], "a:1", 2),
    "several lines are one candidate each": ([(PRE, b"a:1"), (PRE, b"b:2")], "a:1", 2),
    "an empty line among several is dropped": ([(PRE, b""), (PRE, b"b:2"), (PRE, b"c:3")], "b:2", 2),
    "lines of the other spelling are not mixed in": (
        [(PRE_NEW, b"x:9"), (PRE, b"a:1"), (PRE_NEW, b"y:9")],
        "a:1",
        1,
    ),
    "duplicates stay candidates": ([(PRE, b"a:1,a:1")], "a:1", 2),
    "http is stripped": ([(PRE, b"http://a:1,http://b:2")], "a:1", 2),
    "IPv6": ([(PRE, b"[fd00::7]:8000, [fd00::8]:8000")], "[fd00::7]:8000", 2),
    "IPv6 is normalised": ([(PRE, b"http://[FD00:0::7]:8000")], "[fd00::7]:8000", 1),
}


@pytest.mark.parametrize(("lines", "netloc", "candidates"), PREFILLERS.values(), ids=PREFILLERS.keys())
def test_the_prefiller_is_the_first_candidate(lines: Lines, netloc: str | None, candidates: int) -> None:
    assert prefiller_of(lines) == (netloc, candidates)


@pytest.mark.parametrize(
    "lines",
    [
        [(PRE, b"a:1,b:2,c:3")],
        [(PRE, b"a:1"), (PRE, b"b:2"), (PRE, b"c:3")],
        [(PRE_NEW, b" a:1 ,, b:2 , c:3 ")],
    ],
)
@pytest.mark.parametrize(("choice", "netloc"), [(0, "a:1"), (1, "b:2"), (2, "c:3")])
def test_sampling_picks_any_candidate(lines: Lines, choice: int, netloc: str) -> None:
    asked: list[int] = []

    def choose(count: int) -> int:
        asked.append(count)
        return choice

    route = read(lines, SAMPLING, choose)
    assert route.prefiller is not None
    assert (route.prefiller.endpoint.netloc, route.prefill_candidates, asked) == (netloc, 3, [3])


@pytest.mark.parametrize(
    "value", [b"a", b":8000", b"a:notaport", b"a:0", b"a:65536", b"fd00::7:8000", b"\xff:1"]
)
def test_a_prefiller_that_cannot_be_read_is_the_senders_fault_and_never_ignored(value: bytes) -> None:
    with pytest.raises(BadRequest, match="x-prefiller-host-port"):
        read([(PRE, value)], RULES, never)


ENCODERS: dict[str, tuple[Lines, list[str], int]] = {
    "legacy": ([(ENC, b"a:1")], ["a:1"], 1),
    "new": ([(ENC_NEW, b"a:1")], ["a:1"], 1),
    "legacy wins over new": ([(ENC_NEW, b"evil:1"), (ENC, b"a:1")], ["a:1"], 1),
    "blank legacy gives way to new": ([(ENC, b" "), (ENC_NEW, b"a:1,b:2")], ["a:1", "b:2"], 2),
    "commas alone let no new one through": ([(ENC, b" , "), (ENC_NEW, b"evil:1")], [], 0),
    "one line is split": ([(ENC, b" a:1 ,\tb:2 ,, http://c:3,")], ["a:1", "b:2", "c:3"], 3),
    "several lines are one candidate each": ([(ENC, b"a:1"), (ENC, b""), (ENC, b"b:2")], ["a:1", "b:2"], 2),
    "malformed ones are dropped one by one": (
        [(ENC, b"a,b:2,:3,c:0,[FD00::7]:4")],
        ["b:2", "[fd00::7]:4"],
        5,
    ),
    "none can be read": ([(ENC, b"a,\xff:1")], [], 2),
    "duplicates stay": ([(ENC, b"a:1,a:1")], ["a:1", "a:1"], 2),
}


@pytest.mark.parametrize(("lines", "netlocs", "candidates"), ENCODERS.values(), ids=ENCODERS.keys())
def test_encoders_are_all_that_can_be_read(lines: Lines, netlocs: list[str], candidates: int) -> None:
    rules = Rules(decoder=DECODER, own=OWN, base_port=8000, p2p_port=7777, pulls=True, encode=True)
    encoders = tuple(map(Endpoint.parse, netlocs))
    expected = Route(DECODER, encoders=encoders, encoder_candidates=candidates, own=OWN)
    assert read(lines, rules, never) == expected


SOURCES: dict[str, tuple[Lines, str]] = {
    "legacy": ([(SRC, b"10.0.0.2:8000")], "10.0.0.2:8000"),
    "new": ([(SRC_NEW, b"10.0.0.2:8000")], "10.0.0.2:8000"),
    "any case": ([(b"X-KV-Cache-Source-Host-Port", b"10.0.0.2:8000")], "10.0.0.2:8000"),
    "legacy wins": ([(SRC_NEW, b"evil:1"), (SRC, b"10.0.0.2:8000")], "10.0.0.2:8000"),
    "empty legacy": ([(SRC, b""), (SRC_NEW, b"10.0.0.2:8000")], "10.0.0.2:8000"),
    "http": ([(SRC, b"http://10.0.0.2:8000")], "10.0.0.2:8000"),
    "IPv6": ([(SRC, b"[FD00::2]:8000")], "[fd00::2]:8000"),
    "own host, other port": ([(SRC, b"10.0.0.1:8001")], "10.0.0.1:8001"),
    "other host, own port": ([(SRC, b"10.0.0.11:8000")], "10.0.0.11:8000"),
}


@pytest.mark.parametrize(("lines", "netloc"), SOURCES.values(), ids=SOURCES.keys())
def test_a_source_is_pulled_from_at_its_p2p_port(lines: Lines, netloc: str) -> None:
    source = Peer(Endpoint.parse(netloc), 7777)
    assert read(lines, RULES, never) == Route(DECODER, source=source, named_source=source.endpoint, own=OWN)


@pytest.mark.parametrize(
    "value",
    [
        b"127.9.8.7",
        b":8000",
        b"127.9.8.7:notaport:1",
        b"127.9.8.7:0",
        b"127.9.8.7:70000",
        b"fd00::7:8000",
        b"a:1,b:2",
        b"\xff\xfe:8000",
        b"x y:1",
        b"https://10.0.0.2:8000",
    ],
)
def test_a_malformed_source_is_ignored(value: bytes) -> None:
    route = read([(SRC, value)], RULES, never)
    assert (route.source, route.prefiller, route.no_pull) == (None, None, NoPull.MALFORMED)


def test_an_empty_source_is_no_source() -> None:
    assert read([(SRC, b""), (SRC_NEW, b" ")], RULES, never) == Route(DECODER, own=OWN)


def test_a_connector_without_p2p_ignores_the_source() -> None:
    route = read([(SRC, b"10.0.0.2:8000")], NO_PULLS, never)
    assert (route.source, route.no_pull) == (None, NoPull.NO_P2P)


@pytest.mark.parametrize("value", [b"10.0.0.1:8000", b"http://10.0.0.1:8000", b"HTTP://10.0.0.1:8000 "])
def test_decode_only_never_pulls_from_this_pod_itself(value: bytes) -> None:
    route = read([(SRC, value)], RULES, never)
    assert (route.source, route.no_pull) == (None, NoPull.SELF)


@pytest.mark.parametrize("value", [b"[fd00::1]:8000", b"[FD00:0:0::1]:8000", b"http://[fd00::0001]:8000"])
def test_this_pod_is_recognised_by_any_spelling_of_its_ipv6_address(value: bytes) -> None:
    rules = Rules(decoder=DECODER, own=Endpoint("fd00::1", 8000), base_port=8000, p2p_port=7777, pulls=True)
    assert read([(SRC, value)], rules, never).no_pull is NoPull.SELF


def test_without_a_pod_ip_no_source_is_known_to_be_this_pod() -> None:
    rules = Rules(decoder=DECODER, own=None, base_port=8000, p2p_port=7777, pulls=True)
    assert read([(SRC, b"10.0.0.1:8000")], rules, never).source == peer("10.0.0.1", 8000)


@pytest.mark.parametrize("value", [b"10.0.0.3:8000", b"http://10.0.0.3:8000"])
def test_with_a_prefiller_it_is_the_prefiller_that_does_not_pull_from_itself(value: bytes) -> None:
    route = read([(SRC, value), (PRE, b"http://10.0.0.3:8000")], RULES, never)
    assert (route.prefiller, route.source, route.no_pull) == (peer("10.0.0.3", 8000), None, NoPull.SELF)


def test_with_a_prefiller_this_pod_can_be_the_source() -> None:
    route = read([(PRE, b"10.0.0.3:8000"), (SRC, b"10.0.0.1:8000")], RULES, never)
    assert (route.prefiller, route.source) == (peer("10.0.0.3", 8000), peer("10.0.0.1", 8000))


def test_with_sampling_it_is_the_chosen_prefiller_that_does_not_pull_from_itself() -> None:
    rules = Rules(decoder=DECODER, own=None, base_port=8000, p2p_port=7777, pulls=True, sample=True)
    lines = [(PRE, b"10.0.0.3:8000,10.0.0.4:8000"), (SRC, b"10.0.0.4:8000")]
    assert read(lines, rules, lambda _: 1).no_pull is NoPull.SELF
    assert read(lines, rules, lambda _: 0).source == peer("10.0.0.4", 8000)


@pytest.mark.parametrize(
    ("port", "p2p_port"), [(8000, 7777), (8001, 7778), (8003, 7780), (8004, 7777), (7999, 7777), (80, 7777)]
)
def test_the_p2p_port_follows_the_rank_that_the_port_tells(port: int, p2p_port: int) -> None:
    rules = Rules(decoder=DECODER, own=None, base_port=8000, p2p_port=7777, ranks=4, pulls=True)
    route = read([(SRC, b"10.0.0.2:%d" % port), (PRE, b"10.0.0.3:%d" % port)], rules, never)
    assert (route.source, route.prefiller) == (
        peer("10.0.0.2", port, p2p_port),
        peer("10.0.0.3", port, p2p_port),
    )


def test_one_rank_has_one_p2p_port_whatever_the_endpoints_port() -> None:
    for port in (8000, 8001, 9000):
        assert RULES.peer(Endpoint("10.0.0.2", port)).p2p == Endpoint("10.0.0.2", 7777)


def test_the_local_engine_pulls_from_a_source_that_is_not_itself() -> None:
    elsewhere = read([(PRE, b"10.0.0.3:8000"), (SRC, b"10.0.0.2:8000")], RULES, never)
    assert elsewhere.local_source == elsewhere.source == peer("10.0.0.2", 8000)
    itself = read([(PRE, b"10.0.0.3:8000"), (SRC, b"10.0.0.1:8000")], RULES, never)
    assert (itself.source, itself.local_source) == (peer("10.0.0.1", 8000), None)


def test_a_route_without_its_source_keeps_everything_else_and_says_why() -> None:
    route = read([(PRE, b"10.0.0.3:8000,b:1"), (SRC, b"10.0.0.2:8000")], RULES, never)
    assert route.without_source(NoPull.UNREACHABLE) == Route(
        DECODER,
        prefiller=peer("10.0.0.3", 8000),
        prefill_candidates=2,
        source=None,
        named_source=Endpoint("10.0.0.2", 8000),
        no_pull=NoPull.UNREACHABLE,
        own=OWN,
    )
    assert NoPull.UNREACHABLE.value == "source_unreachable"  # contract section 12


_VALUES = st.one_of(st.binary(max_size=12), st.text("a1.:[]%, /htp", max_size=16).map(str.encode))


@settings(max_examples=80, deadline=None)
@given(
    lines=st.lists(
        st.tuples(st.sampled_from((PRE, PRE_NEW, SRC, SRC_NEW, ENC, DP, b"x")), _VALUES), max_size=4
    )
)
def test_any_header_values_make_a_route_or_are_the_senders_fault(lines: Lines) -> None:
    try:
        route = read(lines, RULES, never)
    except BadRequest:
        assert any(name in (PRE, PRE_NEW, DP) for name, _ in lines)
        return
    assert route.decoder == DECODER
    assert (route.source is None) or (route.no_pull is None)
    assert (route.prefiller is None) == (route.prefill_candidates == 0)


@pytest.mark.parametrize("legacy", [b",", b" , ", b",,"])
def test_a_legacy_header_of_commas_alone_is_not_empty_and_lets_no_new_one_through(legacy: bytes) -> None:
    headers = [(b"x-prefiller-host-port", legacy), (b"x-llm-d-prefiller-host-port", b"10.0.0.9:8000")]
    rules = Rules(Endpoint("localhost", 8200), None, 8000, 7777)
    assert read(headers, rules, lambda count: 0).prefiller is None


RANKS = replace(RULES, ranks=4)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("value", [b"10.0.0.1:%d", b" http://10.0.0.1:%d "])
def test_the_data_parallel_header_picks_the_decoder_of_a_rank(rank: int, value: bytes) -> None:
    route = read([(b"X-Data-Parallel-Host-Port", value % (8000 + rank))], RANKS, never)
    own = Endpoint("10.0.0.1", 8000 + rank)
    assert route == Route(Endpoint("localhost", 8200 + rank), own=own, data_parallel=True)


@pytest.mark.parametrize(
    "value",
    [b"10.0.0.1:8004", b"10.0.0.1:7999", b"10.0.0.2:8001", b"10.0.0.1", b":8001", b"10.0.0.1:x", b"\xff:1"],
)
def test_a_rank_that_this_sidecar_does_not_have_is_the_senders_fault(value: bytes) -> None:
    with pytest.raises(BadRequest, match="header x-data-parallel-host-port"):
        read([(DP, value)], RANKS, never)


def test_without_a_known_address_of_its_own_a_sidecar_goes_by_the_port() -> None:
    route = read([(DP, b"10.9.9.9:8001")], replace(RANKS, own=None), never)
    assert route.decoder == Endpoint("localhost", 8201)


@pytest.mark.parametrize("value", [b"10.0.0.1:8000", b"10.0.0.9:1", b"?"])
def test_with_one_rank_the_data_parallel_header_means_nothing(value: bytes) -> None:
    assert read([(DP, value)], RULES, never) == Route(DECODER, own=OWN)


def test_on_another_ranks_port_the_data_parallel_header_means_nothing() -> None:
    for value in (b"10.0.0.1:8000", b"10.0.0.9:1", b"?"):
        route = Route(Endpoint("localhost", 8202), own=Endpoint("10.0.0.1", 8002))
        assert read([(DP, value)], RANKS.at(2), never) == route


def test_the_rules_of_a_rank_are_the_base_ports_but_for_its_decoder_and_address() -> None:
    rules = replace(RANKS, decoder=Endpoint("localhost", 8203), own=Endpoint("10.0.0.1", 8003), rank=3)
    assert RANKS.at(3) == rules
    assert rules.at(0) == RANKS


@pytest.mark.parametrize("port", [8000, 8001, 8003])
def test_a_rank_never_pulls_from_itself_but_from_the_other_ranks_of_its_pod(port: int) -> None:
    source = Peer(Endpoint("10.0.0.1", port), 7777 + port - 8000)
    for rank, lines in ((1, []), (0, [(DP, b"10.0.0.1:8001")])):
        route = read([*lines, (SRC, source.endpoint.netloc.encode())], RANKS.at(rank), never)
        expected = (None, NoPull.SELF) if port == 8001 else (source, None)
        assert (route.source, route.no_pull) == expected
