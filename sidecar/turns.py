"""Names the turns of conversations, and decides whether what a decoder keeps of one begins a new prompt.

Rule: pure. A NIXL read is positional and compares nothing: blocks that are not exactly the first tokens of
the new prompt would be wrong KV, in the reader's prefix cache too. So a request finds an earlier turn only by
a digest of all that shapes the prompt and of whose it is, and what it finds is read only when its tokens are
`proven`: a chat template may render an answer otherwise than the model wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

from sidecar.body import Body
from sidecar.headers import Headers
from sidecar.kvtypes import is_host, is_port
from sidecar.sizes import is_large

# vLLM 0.32 ChatCompletionRequest: what only steers the sampling or the shape of the answer. Every other
# field, known or not, belongs to the digest: one too many costs a hit, one too few would be wrong KV.
_OUTPUT_ONLY = frozenset(
    (
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "kv_transfer_params",  # the client's own go nowhere when a prefiller computes
        "length_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "priority",
        "repetition_penalty",
        "request_id",
        "return_token_ids",
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    )
)
# Who asks. Gateways and vLLM's own `--api-key` go by these.
_TENANT = frozenset((b"authorization", b"x-api-key", b"api-key", b"openai-organization", b"openai-project"))
# Fields with which the answer's tokens are not one text after the prompt's, and their harmless values.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "truncate_prompt_tokens": (None,),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "echo": (None, False),
    "use_beam_search": (None, False),
    "prompt_logprobs": (None,),
    "prompt_embeds": (None,),
}
# A request looks for so many of the latest answers in it; clients extend the last one.
_LOOKED_FOR = 4
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn whose blocks its decoder keeps for a while.

    params: the `kv_transfer_params` by which another engine reads them, as JSON text. engine_id: the
    decoder's. tokens: for how many its KV is there, the prompt's `prompt_tokens` first.
    """

    params: bytes
    engine_id: str
    tokens: int
    prompt_tokens: int
    prompt_digest: bytes


@dataclass(frozen=True, slots=True)
class Earlier:
    """An answer that the client sends back, and the key under which its turn would be kept."""

    key: bytes
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request as a turn.

    history: the digest so far, of all but the answer that is to come. earlier: the latest first. turn: the
    kept one that is extended, if there is one, and `answer`, what was said in it.
    """

    history: hashlib.blake2b
    earlier: tuple[Earlier, ...]
    turn: Turn | None = None
    answer: str = ""

    def key(self, answer: str) -> bytes:
        """Under which this turn is kept, once its answer is known."""
        digest = self.history.copy()
        digest.update(_text({"role": "assistant", "content": answer}))
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Keep:
    """What is known of a turn before its answer: to be kept when the answer says where its blocks are."""

    conversation: Conversation
    prompt_tokens: int
    prompt_digest: bytes


def conversation(body: Body, headers: Headers, path: bytes, secret: bytes) -> Conversation | None:
    """A chat request as a turn; None when it is of no kind whose turns can follow one another.

    secret: of this process, at most 64 bytes; without it nobody can make or guess a key.
    """
    if is_large(body.encode()):
        return None
    try:
        if any(_value(body, field) not in harmless for field, harmless in _PLAIN.items()):
            return None
        messages = _value(body, "messages")
        if not isinstance(messages, list) or not messages or not all(map(_is_plain, messages)):
            return None
        scope = {name: _value(body, name) for name in body if name not in _OUTPUT_ONLY and name != "messages"}
    except (msgspec.DecodeError, RecursionError):
        return None
    history = hashlib.blake2b(key=secret, digest_size=_DIGEST_BYTES)
    history.update(_text([path.decode("latin-1"), _tenant(headers), _said(scope)]))
    earlier: list[Earlier] = []
    for message in messages:
        history.update(_text(_said(message)))
        if message["role"] == "assistant" and message is not messages[-1]:
            earlier.append(Earlier(history.digest(), _content(message)))
    return Conversation(history, tuple(earlier[: -_LOOKED_FOR - 1 : -1]))


def prompt_digest(tokens: Sequence[int]) -> bytes:
    """Of token ids."""
    return hashlib.blake2b(msgspec.json.encode(tokens), digest_size=_DIGEST_BYTES).digest()


def proven(turn: Turn, answer: Sequence[int], prompt: Sequence[int]) -> bool:
    """Whether the tokens that the turn's KV is of are the first of `prompt`.

    answer: the tokens of the turn's answer as text. The engine's count must agree with them: all of them have
    been computed when an end token followed, all but the last when the answer was cut.
    """
    begin, end = turn.prompt_tokens, turn.tokens
    return (
        len(answer) - 1 <= end - begin <= len(answer)
        and 0 < begin <= end < len(prompt)
        and prompt[begin:end] == answer[: end - begin]
        and prompt_digest(prompt[:begin]) == turn.prompt_digest
    )


def turn_of(keep: Keep, params: Mapping[str, Any]) -> Turn | None:
    """The turn, given the `kv_transfer_params` of the decoder's answer; None when nobody can read by them.

    What vLLM 0.32 (nixl/pull_scheduler.py) asks of them; the two roles are the reader's to set.
    """
    named = [params.get(name) for name in ("remote_engine_id", "remote_request_id")]
    tokens = params.get("remote_num_tokens")
    if params.get("do_remote_decode") is not True or not all(isinstance(v, str) and v for v in named):
        return None
    if not is_host(params.get("remote_host")) or not is_port(params.get("remote_port")):
        return None
    if not _is_count(tokens) or not params.get("remote_block_ids"):
        return None
    if params.get("transfer_mode", "pull") != "pull":
        return None
    kept = {name: value for name, value in params.items() if name not in _ROLES}
    return Turn(msgspec.json.encode(kept), str(named[0]), tokens, keep.prompt_tokens, keep.prompt_digest)


_ROLES = frozenset(("do_remote_decode", "do_remote_prefill"))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _value(body: Body, name: str) -> Any:
    return msgspec.json.decode(body[name]) if name in body else None


def _is_plain(message: Any) -> bool:
    """Only text: what an image's or a sound's URL gives may have changed since."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Less what says nothing: SDKs send an answer back with its empty fields, or without."""
    return {name: value for name, value in fields.items() if value not in (None, [], {}, "")}


def _tenant(headers: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    return [[n.lower().decode("latin-1"), v.decode("latin-1")] for n, v in headers if n.lower() in _TENANT]


def _text(value: Any) -> bytes:
    """JSON of one spelling, and a line end, which JSON has none of outside strings."""
    return msgspec.json.encode(value, order="deterministic") + b"\n"
