"""What the client asked, and the legs that can be made of it: the `Call`.

Rule: pure; ids are handed in. Every leg's headers and body are made here, so that one place keeps the promise
that a leg differs from the client's request only in the fields that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sidecar import headers as names
from sidecar.api import Api, Edits, capped, stopless
from sidecar.body import BadBody, Body, dump
from sidecar.endpoint import Endpoint
from sidecar.errors import BadRequest
from sidecar.headers import Headers
from sidecar.kvparams import FIELD, cleared
from sidecar.plan import Leg, Peer, Pull, Role
from sidecar.turns import Conversation

_NOTHING: Edits = {}
_DECODE = Role.DECODE  # for every request, see evidence.py
# The share of a prompt that the engine must have cached to answer at all (contract section 5).
_THRESHOLD = "cache_hit_threshold"

# What an encoder answers about its items, and whoever needs them is told (vLLM 0.32, chat completions).
EC_FIELD = "ec_transfer_params"
# Fields that speak of the conversation, which an encoder's leg has not: with its one user message in their
# place, they would make an engine continue or repeat it, or fail.
_OF_CONVERSATION: Edits = dict.fromkeys((EC_FIELD, "continue_final_message", "add_generation_prompt", "echo"))


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of one request, made once by the sidecar: uuid4 texts and a number.

    request: `x-request-id` of all legs when the client sent none. handoff: names the blocks that a prefiller
    keeps for its decoder. pull: names the pull from a source; never equal to `handoff`. number: 63 random
    bits, for protocols that name a handoff by one and for a random choice.
    """

    request: str
    handoff: str
    pull: str
    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """One routed request of a client.

    path: request target, cleaned, with its query. headers: the client's, less hop-by-hop and routing ones.
    body: the client's JSON object as it may go on when no field has to change.
    conversation: the call as a turn of one, where turns are remembered.
    """

    api: Api
    path: bytes
    headers: Headers
    body: Body
    ids: Ids
    conversation: Conversation | None = None

    @property
    def request_id(self) -> bytes:
        """The `x-request-id` of all legs: the client's if it sent one, else ours."""
        return names.first(self.headers, names.REQUEST_ID) or self.ids.request.encode()

    def prefill(
        self, prefiller: Peer, params: Mapping[str, Any], source: Peer | None, also: Edits = _NOTHING
    ) -> Leg:
        """The capped leg that computes the prompt on `prefiller`, pulling from `source` when there is one.

        params: its `kv_transfer_params`. also: further fields to set or remove.
        Raises BadRequest when the body holds a field that cannot be capped.
        """
        edits = cleared(self.body)
        pull = Pull(source, self.ids.pull) if source else None
        if pull:
            params = {**params, "remote_kv_source": pull.remote_kv_source}
        edits = self._capped(edits) | {FIELD: dump(params), **also}
        return self._leg(Role.PREFILL, prefiller.endpoint, self.body.edited(edits).encode(), pull)

    def decode_after_prefill(self, decoder: Endpoint, params: bytes | None, also: Edits = _NOTHING) -> Leg:
        """The leg that decodes what a prefiller handed over: the client's body with these params.

        `params` is their JSON text, used as it is; None decodes without any. also: further fields.
        """
        edits = {**cleared(self.body), FIELD: params, **also}
        return self._leg(Role.DECODE, decoder, self.body.edited(edits).encode())

    def uncapped(self, role: Role, target: Endpoint, also: Edits) -> Leg:
        """A leg with the client's body, its own params too, and these fields."""
        return self._leg(role, target, self.body.edited(also).encode())

    def capped(self, role: Role, target: Endpoint, also: Edits) -> Leg:
        """The same, capped. Raises BadRequest when the body holds a field that cannot be capped."""
        return self._leg(role, target, self.body.edited(self._capped({}) | also).encode())

    def encode(self, encoder: Endpoint, item: bytes, index: int) -> Leg:
        """The capped leg that encodes one multimodal item, the call's item number `index`.

        Raises BadRequest when the body holds a field that cannot be capped.
        """
        messages = b'[{"role":"user","content":[%b]}]' % item
        edits = self._capped({**cleared(self.body), **_OF_CONVERSATION, "messages": messages})
        leg = self._leg(Role.ENCODE, encoder, self.body.edited(edits).encode())
        request_id = names.first(leg.headers, names.REQUEST_ID) or b""
        return leg.with_header(names.REQUEST_ID, b"%b-enc-%d" % (request_id, index))

    def aside(self, role: Role, target: Endpoint, path: bytes, body: Body, timeout_s: float) -> Leg:
        """A question beside the request: with its headers, but a path, body and time limit of its own."""
        leg = self._leg(role, target, body.encode())
        return replace(leg, path=path, timeout_s=timeout_s)

    def identified(self) -> Call:
        """The same call with an `x-request-id` that all legs made of it carry, `decode` too."""
        return replace(self, headers=self._identified())

    def with_body(self, edits: Edits) -> Call:
        """The same call with fields of its body set or removed."""
        return replace(self, body=self.body.edited(edits))

    def stopless(self) -> Call:
        """The same call for a capped leg that must not end before its cap, at a stop token.

        Raises BadRequest when the body holds a field that cannot be capped.
        """
        try:
            return self.with_body(stopless(self.api, self.body))
        except BadBody as error:
            raise BadRequest(str(error)) from None

    def decode(self, decoder: Endpoint, source: Peer | None) -> Leg:
        """The only leg: the client's body as it is, or with the directive to pull from `source`."""
        if source is None:
            return Leg(_DECODE, decoder, b"POST", self.path, self.headers, self.body.encode())
        pull = Pull(source, self.ids.pull)
        params = dump({"remote_kv_source": pull.remote_kv_source})
        content = self.body.edited({**cleared(self.body), FIELD: params}).encode()
        return Leg(_DECODE, decoder, b"POST", self.path, self.headers, content, pull)

    def decode_alone(self, decoder: Endpoint, source: Peer | None) -> Leg:
        """The leg that has the local engine compute the prompt although the route names a prefiller.

        None of the client's params go on, nor a threshold at which the engine would give the request back.
        """
        pull = Pull(source, self.ids.pull) if source else None
        params = dump({"remote_kv_source": pull.remote_kv_source}) if pull else None
        edits: Edits = {**cleared(self.body), FIELD: params}
        if _THRESHOLD in self.body:
            edits[_THRESHOLD] = b"0"
        return self._leg(Role.DECODE, decoder, self.body.edited(edits).encode(), pull)

    def _capped(self, edits: Edits) -> Edits:
        """These edits and the cap of the body that they make."""
        try:
            return edits | capped(self.api, self.body.edited(edits))
        except BadBody as error:
            raise BadRequest(str(error)) from None

    def _leg(self, role: Role, target: Endpoint, content: bytes, pull: Pull | None = None) -> Leg:
        """One of several legs: all carry the same `x-request-id`."""
        return Leg(role, target, b"POST", self.path, self._identified(), content, pull)

    def _identified(self) -> Headers:
        headers = self.headers
        if names.first(headers, names.REQUEST_ID):
            return headers
        return (*names.without(headers, names.REQUEST_ID), (names.REQUEST_ID, self.ids.request.encode()))
