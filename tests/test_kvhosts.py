"""What a client's body may make an engine contact, with SSRF protection on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.allowlist import Allowlist, entry
from sidecar.body import Body
from sidecar.errors import BadRequest
from sidecar.kvhosts import refuse_others

ALLOWLIST = Allowlist.of(map(entry, ("10.0.0.1:8000", "[fd00::1]:8000")))


def refusal(fields: dict[str, Any]) -> str | None:
    try:
        refuse_others(Body.parse(json.dumps(fields).encode()), ALLOWLIST)
    except BadRequest as error:
        return str(error)
    return None


def denied(field: str) -> str:
    return f'field "{field}" names a host that SSRF protection does not allow'


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"remote_host": "10.0.0.1", "remote_port": 5600},
        {"remote_host": None, "remote_hosts": ["10.0.0.1", "fd00::1"]},
        {"remote_bootstrap_addr": "http://10.0.0.1:8998"},
        {"remote_bootstrap_addr": "https://[fd00::1]:8998/"},
        {"remote_kv_source": {"remote_host": "fd00:0::1"}, "remote_prefiller": None, "remote_decoder": {}},
    ],
)
def test_hosts_of_the_pool_pass_at_whatever_port(params: dict[str, Any]) -> None:
    assert refusal({"kv_transfer_params": params, "bootstrap_host": "10.0.0.1"}) is None


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"remote_host": "169.254.169.254"}, "remote_host"),
        ({"remote_host": "10.0.0.1", "remote_hosts": ["10.0.0.1", "evil"]}, "remote_hosts"),
        ({"remote_bootstrap_addr": "http://evil:8998"}, "remote_bootstrap_addr"),
        ({"remote_bootstrap_addr": "http://evil\\@10.0.0.1:8998"}, "remote_bootstrap_addr"),
        ({"remote_bootstrap_addr": "http://10.0.0.1:80@evil:80"}, "remote_bootstrap_addr"),
        ({"remote_bootstrap_addr": "http://10.0.0.1"}, "remote_bootstrap_addr"),
        ({"remote_bootstrap_addr": 7}, "remote_bootstrap_addr"),
        ({"remote_kv_source": {"remote_host": "10.0.0.2"}}, "remote_kv_source.remote_host"),
        ({"remote_prefiller": {"remote_host": "127.1"}}, "remote_prefiller.remote_host"),
        ({"remote_decoder": {"remote_host": ["10.0.0.1", 5]}}, "remote_decoder.remote_host"),
    ],
)
@pytest.mark.parametrize(
    "place",
    ["kv_transfer_params", "vllm_xargs.kv_transfer_params", "sampling_params.extra_args.kv_transfer_params"],
)
def test_any_other_host_is_refused_wherever_it_stands(params: dict[str, Any], field: str, place: str) -> None:
    fields: Any = params
    for key in reversed(place.split(".")):
        fields = {key: fields}
    assert refusal(fields) == denied(f"{place}.{field}")


@pytest.mark.parametrize("value", ["evil", ["10.0.0.1", "evil"], 7, {"a": 1}])
def test_the_bootstrap_host_of_sglang_is_looked_at_too(value: Any) -> None:
    assert refusal({"bootstrap_host": value}) == denied("bootstrap_host")


@pytest.mark.parametrize("params", [None, "text", [1], 7])
def test_what_is_no_object_names_no_host(params: Any) -> None:
    assert refusal({"kv_transfer_params": params, "vllm_xargs": params}) is None


def test_hosts_that_are_too_many_to_look_at_are_not_allowed() -> None:
    assert refusal({"bootstrap_host": ["10.0.0.1"] * 100_001}) == denied("bootstrap_host")
