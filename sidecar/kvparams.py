"""What a client may say in `kv_transfer_params`, wherever a body can carry them.

Rule: pure. Seen on vLLM 0.32: `"remote_kv_source": "abc"` or `do_remote_prefill` without block ids ends the
engine process, so what reaches an engine has the right types and all that its kind requires, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from sidecar.api import Edits
from sidecar.body import BadBody, Body
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.errors import BadRequest

FIELD = "kv_transfer_params"

# Where a body can hold them: the field itself, vLLM's free-form extra arguments (`vllm_xargs` of its OpenAI
# entrypoints), and `SamplingParams.extra_args`, which `/inference/v1/generate` takes as sent.
PLACES: tuple[tuple[str, ...], ...] = (
    (FIELD,),
    ("vllm_xargs", FIELD),
    ("sampling_params", "extra_args", FIELD),
)

_TOPS = frozenset(place[0] for place in PLACES)

# Without these an engine that is told to fetch dies (contract section 5).
HANDOFF_REQUIRED = ("remote_block_ids", "remote_engine_id", "remote_host", "remote_port")
# vLLM 0.32 needs P's internal request id too; older engines answer without it: asked of clients only.
_CLIENT_REQUIRED = (*HANDOFF_REQUIRED, "remote_request_id")


class Policy(StrEnum):
    """`--client-kv-transfer-params`."""

    VALIDATE = "validate"
    STRIP = "strip"
    REJECT = "reject"
    PASS = "pass"


def screen(body: Body, policy: Policy) -> Edits:
    """Apply the policy to a body whose params would be forwarded: the edits that make it safe.

    Raises BadRequest, naming the field, for what the policy refuses.
    """
    if policy is Policy.PASS:
        return {}
    if policy is Policy.STRIP:
        return cleared(body)
    for place in PLACES:
        raw = find(body, place)
        if raw is None or raw == b"null":
            continue
        name = ".".join(place)
        if policy is Policy.REJECT:
            raise BadRequest(f'field "{name}" is not accepted from clients')
        _validate(name, raw)
    return {}


def refuse_shared(body: Body) -> None:
    """Refuse what makes an engine fetch, for a body of several prompts that would share it.

    Seen on vLLM 0.32: the engine process ends, or prompts are answered from another's blocks.
    Raises BadRequest, naming the field.
    """
    for place in PLACES:
        raw = find(body, place)
        if raw is None or raw == b"null":
            continue
        params = Body.parse(raw)
        for field in ("remote_kv_source", "do_remote_prefill"):
            if params.get(field, b"null") not in (b"null", b"false"):
                name = ".".join((*place, field))
                raise BadRequest(f'field "{name}" serves one prompt, and the request has several')


def cleared(body: Body) -> Edits:
    """The edits that remove the client's params from every place."""
    if not body.holds_any(_TOPS):
        return {}
    return {place[0]: _removed(body, place) for place in PLACES if find(body, place) is not None}


def without_source(content: bytes) -> bytes:
    """The body of a leg that pulls, less the directive; less the field, too, where that was all of it."""
    body = Body.parse(content)
    params = Body.parse(body[FIELD]).edited({"remote_kv_source": None})
    return body.edited({FIELD: params.encode() if params else None}).encode()


def complete_handoff(raw: bytes) -> bool:
    """Whether a prefill answer's params can be given to a decoder without killing it."""
    try:
        params = Body.parse(raw)
    except BadBody:
        return False
    if params.get("do_remote_prefill") != b"true":
        return True
    return all(params.get(field, b"null") != b"null" for field in HANDOFF_REQUIRED)


def find(body: Body, place: tuple[str, ...]) -> bytes | None:
    """What a body holds at a place; None where it holds nothing."""
    for key in place[:-1]:
        if key not in body:
            return None
        try:
            body = Body.parse(body[key])
        except BadBody:  # not an object: it can hold no params, and its type is the engine's to refuse
            return None
    return body.get(place[-1])


def _removed(body: Body, place: tuple[str, ...]) -> bytes | None:
    """The new text of the top-level field once the param at `place` is gone; None to drop the field."""
    if len(place) == 1:
        return None
    inner = Body.parse(body[place[0]])
    return inner.edited({place[1]: _removed(inner, place[1:])}).encode()


def _validate(name: str, raw: bytes) -> None:
    try:
        params = Body.parse(raw)
    except BadBody:
        raise BadRequest(f'field "{name}" must be an object') from None
    _check_types(name, params, _TYPES)
    if params.get("do_remote_prefill") == b"true":
        for field in _CLIENT_REQUIRED:
            # Empty block ids end the engine like absent ones: vLLM asks for their truth.
            if params.get(field, b"null") == b"null" or params.value(field) == []:
                raise BadRequest(f'field "{name}.{field}" is required with do_remote_prefill')


Check = Callable[[Any], bool]


def _check_types(name: str, params: Body, types: Mapping[str, tuple[str, Check] | Mapping[str, Any]]) -> None:
    for field in params:
        expected = types.get(field)
        if expected is None or params[field] == b"null":
            continue
        where = f"{name}.{field}"
        try:
            if isinstance(expected, tuple):
                words, check = expected
                holds = check(params.value(field))
            else:
                words, holds = "an object", True
                _check_types(where, Body.parse(params[field]), expected)
        except BadBody:
            holds = False
        if not holds:
            raise BadRequest(f'field "{where}" must be {words}')


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_port(value: Any) -> bool:
    return _is_int(value) and 0 < value < 65536


def _is_block_ids(value: Any) -> bool:
    """A list of block ids, or one such list per KV cache group (vLLM 0.32 nixl connector)."""
    return isinstance(value, list) and all(
        _is_int(item) or (isinstance(item, list) and all(map(_is_int, item))) for item in value
    )


def _is_host(value: Any) -> bool:
    """A name or an address, IPv6 without brackets; vLLM's P2P tier dies of anything else (libzmq: EINVAL)."""
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
_PORT = ("a port from 1 to 65535", _is_port)
_NUMBER = ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
_STRINGS = (
    "a list of strings",
    lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
)
_HOST = ("a host name or an IP address", _is_host)
_REMOTE = {"kv_request_id": _STR, "remote_host": _HOST, "remote_port": _PORT}

# Known keys of vLLM 0.32's P2P tier, NIXL, Mooncake and MoRI-IO connectors. Unknown keys pass.
_TYPES: Mapping[str, tuple[str, Check] | Mapping[str, Any]] = {
    "remote_kv_source": _REMOTE,
    "remote_prefiller": _REMOTE,
    "remote_decoder": _REMOTE,
    "do_remote_prefill": _BOOL,
    "do_remote_decode": _BOOL,
    "remote_block_ids": ("a list of block ids", _is_block_ids),
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
