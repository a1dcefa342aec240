"""What a client may say in `kv_transfer_params`, wherever a body can carry them.

Rule: pure. Seen on vLLM 0.32: `"remote_kv_source": "abc"` or `do_remote_prefill` without block ids ends the
engine process, so what reaches an engine has the right types and all that its kind requires, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sidecar.api import Edits
from sidecar.body import BadBody, Body
from sidecar.errors import BadRequest
from sidecar.kvtypes import check_types, holds_blocks

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
_BLOCKS = "remote_block_ids"
HANDOFF_REQUIRED = (_BLOCKS, "remote_engine_id", "remote_host", "remote_port")
# vLLM 0.32 needs P's internal request id too; older engines answer without it: asked of clients only.
_CLIENT_REQUIRED = (*HANDOFF_REQUIRED, "remote_request_id")

# The block ids of a prompt of a million tokens, in blocks of 16, are half of that; of 48,000 tokens, 20 KB.
_MOST_BYTES = 1024 * 1024


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
        if len(raw) > _MOST_BYTES:
            raise BadRequest(f'field "{name}" is over the limit of {_MOST_BYTES} bytes')
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


def may_hold(body: Body) -> bool:
    """Whether a body has a field that can hold params."""
    return body.holds_any(_TOPS)


def cleared(body: Body) -> Edits:
    """The edits that remove the client's params from every place. Raises BadRequest as `find`."""
    if not may_hold(body):
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
    # Engines ask for its truth, and 1 and "true" are as true to them.
    if params.get("do_remote_prefill", b"null") in (b"false", b"null"):
        return True
    return _lacking(params, HANDOFF_REQUIRED) is None and well_typed(params)


# Of an answer: two that engines ask for their truth, and one that is long and judged by its blocks.
_JUDGED_OTHERWISE: Edits = dict.fromkeys(("do_remote_prefill", "do_remote_decode", _BLOCKS))


def well_typed(params: Body) -> bool:
    """Whether what an engine answered says where its blocks are, and of what shape, as engines read it.

    Null apart. Told otherwise, vLLM 0.32 fails the request, and with MoRI-IO the scheduler raises, which ends
    the engine (moriio_connector.py, update_state_after_alloc).
    """
    try:
        check_types(FIELD, params.edited(_JUDGED_OTHERWISE))
    except BadRequest:
        return False
    return True


def find(body: Body, place: tuple[str, ...]) -> bytes | None:
    """What a body holds at a place; None where it holds nothing.

    Raises BadRequest, naming the field, for an object that is too much to look for it in.
    """
    for key in place[:-1]:
        raw = body.get(key, b"null")
        if not raw.startswith(b"{"):  # it can hold no params, and its type is the engine's to refuse
            return None
        try:
            body = Body.parse(raw)
        except BadBody:
            raise BadRequest(f'field "{key}" is too much to look for {FIELD} in') from None
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
    check_types(name, params)
    fetches = params.get("do_remote_prefill") == b"true"
    if fetches and (field := _lacking(params, _CLIENT_REQUIRED)) is not None:
        raise BadRequest(f'field "{name}.{field}" is required with do_remote_prefill')


def _lacking(params: Body, required: Iterable[str]) -> str | None:
    """The first of the required fields that is absent, null, or names no block."""
    for field in required:
        value = params.get(field, b"null")
        if value == b"null" or (field == _BLOCKS and not holds_blocks(value)):
            return field
    return None
