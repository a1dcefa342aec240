"""What the known keys of `kv_transfer_params` hold.

Rule: pure; a table of the keys of vLLM 0.32's connectors. An engine that is told something else of them may
die of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from sidecar.body import BadBody, Body
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.errors import BadRequest

Check = Callable[[Any], bool]
Types = Mapping[str, tuple[str, Check] | Mapping[str, Any]]


def check_types(name: str, params: Body) -> None:
    """Raises BadRequest for a known key, null apart, whose value is of another type. name: of the params."""
    _check(name, params, _TYPES)


def holds_blocks(raw: bytes) -> bool:
    """Whether the JSON text of `remote_block_ids` is a list that names a block, in a group of it perhaps.

    Of a request that is told to fetch none, vLLM 0.32 asserts that there is nothing to compute, and dies
    (nixl/pull_scheduler.py, update_state_after_alloc; pull_worker.py for groups that are all empty).
    """
    return _A_BLOCK.match(raw) is not None


# The first that is neither a bracket nor a comma is a number.
_A_BLOCK = re.compile(rb"\[[\s\[\],]*+[-0-9]")


def _check(name: str, params: Body, types: Types) -> None:
    for field in params:
        expected = types.get(field)
        if expected is None or params[field] == b"null":
            continue
        where = f"{name}.{field}"
        try:
            if isinstance(expected, tuple):
                words, check = expected
                holds = check(params[field] if check is _are_block_ids else params.value(field))
            else:
                words, holds = "an object", True
                _check(where, Body.parse(params[field]), expected)
        except BadBody:
            holds = False
        if not holds:
            raise BadRequest(f'field "{where}" must be {words}')


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def is_port(value: Any) -> bool:
    """Whether it is the number of a port."""
    return _is_int(value) and 0 < value < 65536


def _are_block_ids(raw: bytes) -> bool:
    """A list of block ids, or one such list per KV cache group (vLLM 0.32 nixl connector), as its JSON text.

    The one field that is long: a prompt of a million tokens has 65,536.
    """
    try:
        _BLOCK_IDS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


_BlockId = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_BLOCK_IDS = msgspec.json.Decoder(list[_BlockId | list[_BlockId]])


def is_host(value: Any) -> bool:
    """Whether it is a name or an address, IPv6 without brackets.

    vLLM's P2P tier dies of anything else (libzmq: EINVAL).
    """
    if not isinstance(value, str) or value != value.strip():
        return False
    try:
        Endpoint.parse(f"[{value}]:1" if ":" in value else f"{value}:1")
    except MalformedEndpoint:
        return False
    return True


_BOOL = ("true or false", lambda value: isinstance(value, bool))
_STR = ("a string", lambda value: isinstance(value, str))
_INT = ("an integer", _is_int)
_PORT = ("a port from 1 to 65535", is_port)
_NUMBER = ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
_STRINGS = (
    "a list of strings",
    lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
)
_HOST = ("a host name or an IP address", is_host)
_REMOTE = {"kv_request_id": _STR, "remote_host": _HOST, "remote_port": _PORT}

# Known keys of vLLM 0.32's P2P tier, NIXL, Mooncake and MoRI-IO connectors. Unknown keys pass.
_TYPES: Types = {
    "remote_kv_source": _REMOTE,
    "remote_prefiller": _REMOTE,
    "remote_decoder": _REMOTE,
    "do_remote_prefill": _BOOL,
    "do_remote_decode": _BOOL,
    "remote_block_ids": ("a list of block ids", _are_block_ids),
    "remote_engine_id": _STR,
    "remote_request_id": _STR,
    "remote_host": _HOST,
    "remote_port": _PORT,
    "tp_size": _INT,
    "dcp_size": _INT,
    "pp_size": _INT,
    "remote_num_tokens": _INT,
    "remote_blocks_expiry_time": _NUMBER,
    "remote_prefill_cached_tokens": _INT,
    "transfer_mode": _STR,
    "transfer_id": _STR,
    "remote_bootstrap_addr": _STR,
    "remote_notify_port": _PORT,
    "remote_handshake_port": _PORT,
    "remote_dp_rank": _INT,
    "remote_dp_rank_override": _BOOL,
    "remote_dp_size": _INT,
    "remote_dp_size_local": _INT,
    "remote_hosts": _STRINGS,
}
