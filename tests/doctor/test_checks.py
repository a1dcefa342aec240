"""Each check of one engine: what is wrong is said with its remedy, and what is not told is no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.doctor.checks import examined
from sidecar.doctor.findings import Finding, Severity, exit_code
from sidecar.doctor.fronts import directed_port, fronted
from sidecar.doctor.told import Configuration, Families, Port, SidecarTold, Source, Tier, Told
from sidecar.endpoint import Endpoint
from sidecar.remote.facts import Facts
from sidecar.remote.place import Place
from tests.doctor.made import CACHE, told

P2P = Endpoint("10.0.0.1", 7777)
SHUT = Port(P2P, None, "connection refused")


def of(check: str, one: Told) -> Finding:
    """The only finding of a check."""
    [found] = [finding for finding in (*examined(one), *fronted(one)) if finding.check == check]
    return found


def test_a_healthy_engine_has_no_finding_and_its_values_are_short() -> None:
    found = [*examined(told()), *fronted(told())]
    assert {finding.severity for finding in found} == {Severity.FINE, Severity.UNTOLD}
    assert [finding.check for finding in found if finding.severity is Severity.UNTOLD] == [
        "revision",
        "CPU tier",
    ]
    assert max(len(finding.value) for finding in found) <= 16
    assert exit_code(found) == 0


def test_of_an_engine_that_gives_no_answer_nothing_else_is_said() -> None:
    [found] = [*examined(told(failure="connection refused")), *fronted(told(failure="x"))]
    assert (found.check, found.severity, found.says) == (
        "reachable",
        Severity.ERROR,
        "no answer: connection refused",
    )


UNTOLD: dict[str, dict[str, Any]] = {
    "version": {"facts": Facts(), "alone": None, "unready": "x"},
    "model": {"facts": Facts()},
    "block size": {"facts": Facts()},
    "prefix caching": {"facts": Facts()},
    "KV dtype": {"facts": Facts()},
    "parallel": {"alone": None, "unready": "x"},
    "KV per token": {"alone": None, "unready": "x"},
    "P2P port": {"ports": ()},
    "offload_prompt_only": {"answers_kept": None},
    "token details": {"alone": None, "unready": "x"},
    "clock": {"ahead_s": None},
    "parameter names": {"facts": Facts()},
    "connector": {"families": Families(untold=True)},
}


@pytest.mark.parametrize("check", UNTOLD)
def test_what_an_engine_does_not_tell_is_said_to_be_not_told(check: str) -> None:
    found = of(check, told(**UNTOLD[check]))
    assert (found.severity, found.value) == (Severity.UNTOLD, "not told")
    assert found.says


WRONG: dict[str, tuple[str, dict[str, Any], Severity, str]] = {
    "no completion": ("answers", {"alone": None, "alone_failure": "401"}, Severity.ERROR, "-H"),
    "not ready": ("ready", {"unready": "loading"}, Severity.ERROR, "Wait"),
    "no prefix cache": (
        "prefix caching",
        {"facts": Facts(cache={**CACHE, "enable_prefix_caching": "False"})},
        Severity.ERROR,
        "--no-enable-prefix-caching",
    ),
    "an old version": ("parameter names", {"facts": Facts(version="0.9.2")}, Severity.WARNING, "0.32"),
    "old counters": (
        "parameter names",
        {"facts": Facts(), "families": Families(tiering=True, old_names=True)},
        Severity.WARNING,
        "0.32",
    ),
    "prompts only, as seen": ("offload_prompt_only", {"answers_kept": False}, Severity.WARNING, "false"),
    "prompts only, as told": (
        "offload_prompt_only",
        {"configuration": Configuration(prompt_only=True)},
        Severity.WARNING,
        "false",
    ),
    "a small tier": (
        "CPU tier",
        {"configuration": Configuration(tier_bytes=512 * 32 * 1024 // 2)},
        Severity.WARNING,
        "cpu_bytes_to_use to 16,777,216 at least",
    ),
    "a clock behind": ("clock", {"ahead_s": -30.0}, Severity.WARNING, "NTP"),
    "a shut rank": (
        "DP ports",
        {
            "families": Families(tiering=True, ranks=2),
            "ports": (Port(P2P, 0.1), replace(SHUT, endpoint=Endpoint("10.0.0.1", 7778))),
        },
        Severity.ERROR,
        "as many ports",
    ),
    "no tier": ("connector", {"families": Families()}, Severity.ERROR, "TieringOffloadingSpec"),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_has_its_severity_and_a_remedy(words: str) -> None:
    check, other, severity, remedy = WRONG[words]
    found = of(check, told(**other))
    assert found.severity is severity
    assert remedy in found.change
    assert found.says


SHUT_AT: dict[str, tuple[dict[str, Any], str]] = {
    "nothing more is told": ({}, "whether it is bound elsewhere is not told"),
    "loopback answers": (
        {"ports": (replace(SHUT, loopback=True),)},
        "127.0.0.1:7777 does: the tier is bound to loopback only",
    ),
    "bound elsewhere": (
        {"configuration": Configuration(tier=Tier("10.9.9.9", 7000))},
        "its configuration binds 10.9.9.9:7000",
    ),
    "bound by default": (
        {"configuration": Configuration(tier=Tier(), side_host="localhost")},
        "its configuration binds localhost:5710",
    ),
    "no tier": ({"configuration": Configuration()}, "its configuration has no P2P tier"),
}


@pytest.mark.parametrize("words", SHUT_AT)
def test_a_shut_port_says_where_the_tier_is_as_far_as_that_is_told(words: str) -> None:
    other, ends = SHUT_AT[words]
    found = of("P2P port", told(**{"ports": (SHUT,), **other}))
    assert found.severity is Severity.ERROR
    assert found.says.startswith(
        "nothing accepts at 10.0.0.1:7777 (connection refused), so no engine was told"
    )
    assert found.says.endswith(ends)
    assert '"port": 7777' in found.change


def test_a_loopback_address_is_nowhere_for_peers_of_other_hosts() -> None:
    found = of("P2P port", told(ports=(Port(Endpoint("127.0.0.1", 7777), 0.1),)))
    assert (found.severity, found.value) == (Severity.ERROR, "loopback")
    assert found.change == "Name its address on the network: --p2p A=HOST:PORT."


def test_a_tier_that_binds_every_address_is_a_warning() -> None:
    found = of("P2P port", told(configuration=Configuration(tier=Tier("0.0.0.0", 7777))))
    assert (found.severity, found.value) == (Severity.WARNING, "every address")


def test_a_snapshot_of_a_hub_tells_the_revision() -> None:
    root = "/hub/models--m/snapshots/0123456789abcdef0123456789abcdef01234567"
    assert of("revision", told(facts=Facts("m", root))).value == "0123456789ab"


def front(**settings: str) -> Told:
    """A sidecar in front of a healthy engine, with these settings among others."""
    defaults = {"kv-connector": "offloading", "p2p-connector-port": "7777", "source-guard": "on"}
    sidecar = SidecarTold({**defaults, **settings}, bad_sources=0.0, silent_sources=0.0, rescues=0.0)
    return told(facts=Facts("m", version="0.32.0", through_sidecar=True, cache=CACHE), sidecar=sidecar)


def test_a_sidecar_at_another_p2p_port_is_named() -> None:
    one = front(**{"p2p-connector-port": "7000"})
    found = [finding for finding in fronted(one) if finding.check == "P2P port"]
    assert [(finding.severity, finding.value) for finding in found] == [(Severity.ERROR, "7000 ≠")]


def test_a_sidecar_of_a_rank_directs_to_that_ranks_port() -> None:
    own = front(**{"data-parallel-size": "2"})
    second = replace(own, peer=replace(own.peer, p2p=Endpoint("10.0.0.1", 7778), rank=1))
    assert [finding for finding in fronted(second) if finding.check == "P2P port"] == []
    ranks = {"data-parallel-size": "2", "port": "8000"}
    at_8001 = replace(second, peer=replace(second.peer, place=Place("http", Endpoint("10.0.0.1", 8001))))
    assert directed_port(front(**ranks), at_8001) == 7778
    assert directed_port(front(**ranks), front()) == 7777
    assert directed_port(told(), second) is None


@pytest.mark.parametrize("beside", [-1, 1, 40])
def test_a_sidecar_of_one_rank_directs_to_its_one_port_whatever_stands_beside_it(beside: int) -> None:
    one = front(**{"port": "8000"})
    place = Place("http", Endpoint("10.0.0.1", 8000 + beside))
    neighbour = replace(
        front(port=str(8000 + beside)), peer=replace(one.peer, place=place, rank=max(0, beside))
    )
    assert (directed_port(one, neighbour), directed_port(neighbour, one)) == (7777, 7777)
    assert [finding for finding in fronted(neighbour) if finding.check == "P2P port"] == []


@pytest.mark.parametrize("text", ["", "x", "٣", "9" * 5000, "-1"])
def test_a_setting_that_is_no_number_is_not_told(text: str) -> None:
    odd = front(**{"p2p-connector-port": text, "data-parallel-size": text})
    assert directed_port(odd, odd) is None
    assert of("DP ports", odd).severity is Severity.FINE


def test_a_sidecar_fits_a_multi_connector_with_either_of_its_halves() -> None:
    both = Families(tiering=True, nixl=True)
    for settings in ({}, {"kv-connector": "nixlv2", "enable-p2p-pull": "true"}):
        assert of("connector", replace(front(**settings), families=both)).severity is Severity.FINE
    assert of("connector", front(**{"kv-connector": "sglang"})).severity is Severity.ERROR


GUARDS: dict[str, tuple[dict[str, Any], str]] = {
    "rescued": ({"rescues": 2.0}, "2 pulls hung"),
    "refuses": (
        {"bad_sources": 1.0, "sources": (Source("10.0.0.9:7777", "refuses", False),)},
        "accepts nothing: 10.0.0.9:7777",
    ),
    "silent": (
        {"silent_sources": 1.0, "sources": (Source("10.0.0.9:7777", "accepts", True),)},
        "moved nothing, and that rest: 10.0.0.9:7777",
    ),
}


@pytest.mark.parametrize("value", GUARDS)
def test_what_the_guard_keeps_back_is_a_warning_that_names_it(value: str) -> None:
    other, says = GUARDS[value]
    one = front()
    assert one.sidecar is not None
    found = of("guard", replace(one, sidecar=replace(one.sidecar, **other)))
    assert (found.severity, found.value) == (Severity.WARNING, value)
    assert says in found.says
