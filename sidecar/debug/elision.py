"""Shows legs' headers and bodies without what is a user's own: prompts, texts, credentials.

Rule: pure. Of a body only what is known to be no text of the user is shown; whatever is not known is elided.
"""

from __future__ import annotations

from sidecar import headers as names
from sidecar.body import BadBody, Body, dump
from sidecar.headers import Headers

# Fields whose whole value is shown, besides numbers, booleans and null, which are anywhere.
_SHOWN = frozenset(
    (
        "bootstrap_host",
        "ec_transfer_params",
        "kv_transfer_params",
        "model",
        "stream_options",
        "tool_choice",
    )
)
# Objects in which the same is asked of each field.
_LOOKED_INTO = frozenset(("sampling_params", "vllm_xargs"))


def shown_headers(headers: Headers) -> list[str]:
    """`name: value` of each, credentials elided."""
    return [f"{name.decode('latin-1')}: {_value(name, value)}" for name, value in headers]


def _value(name: bytes, value: bytes) -> str:
    return _elided(value) if name.lower() in names.SECRETS else value.decode("latin-1")


def shown_body(content: bytes, *, prompts: bool) -> Body | None:
    """A leg's body as it may be shown, its values as they are or a text that says how long they are.

    None for a body that is no JSON object.
    """
    try:
        body = Body.parse(content)
    except BadBody:
        return None
    return body if prompts else _without_prompts(body)


def _without_prompts(body: Body) -> Body:
    return Body({key: _shown(key, raw) for key, raw in body.items()})


def _shown(key: str, raw: bytes) -> bytes:
    if key in _SHOWN or raw[:1] not in b'"[{':
        return raw
    if key in _LOOKED_INTO and raw.startswith(b"{"):
        return _without_prompts(Body.parse(raw)).encode()
    return dump(_elided(raw))


def _elided(value: bytes) -> str:
    return f"<elided: {len(value)} bytes>"
