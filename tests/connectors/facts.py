"""What each connector does that others do not: the table by which the contract test judges them all.

Rule: one row for each way in which a connector can go; a promise that every connector makes is not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.connectors.options import MoRIIO, Options
from sidecar.plan import Reply, Role
from tests.connectors.play import OPTIONS, PREFILLER, reply_of

ANSWER = reply_of(
    b'{"id":"x","usage":{"prompt_tokens_details":{"cached_tokens":96}},'
    b'"kv_transfer_params":{"do_remote_prefill":true,'
    b'"do_remote_decode":false,"remote_block_ids":[[9]],"remote_engine_id":"e","remote_request_id":"r",'
    b'"remote_host":"10.0.0.3","remote_port":18150}}'
)


REFUSAL = reply_of(b'{"choices":[{"text":"","finish_reason":"cache_threshold"}]}')
BOOTSTRAP = reply_of(b'{"0":{"engine_id":"e","worker_addr":{"0":{"0":"tcp://10.0.0.3:5000"}}}}')


@dataclass(frozen=True, slots=True)
class Facts:
    """One way of one connector.

    replies: what its asked and offered legs get, in order. roles: of all its legs, in the order sent.
    params: roles of the legs that carry `kv_transfer_params`. capped: whether the cap holds on its prefill.
    adds: fields that it adds to the decode body. prefill_adds: fields that it adds to the prefill body
    besides the cap, in `sampling_params` where the API has its cap there. prefill_headers: names of headers
    that only the prefill leg has. ids: the keys under which its own ids stand in its bodies. asks: what the
    client's body must hold for it to go this way.
    """

    connector: str
    replies: tuple[Reply, ...] = ()
    roles: tuple[Role, ...] = (Role.PREFILL, Role.DECODE)
    params: tuple[Role, ...] = (Role.PREFILL, Role.DECODE)
    capped: bool = True
    adds: frozenset[str] = frozenset()
    prefill_adds: frozenset[str] = frozenset()
    prefill_headers: tuple[bytes, ...] = ()
    ids: frozenset[str] = frozenset()
    asks: bytes = b""
    options: Options = OPTIONS


WAYS: dict[str, Facts] = {
    "nixlv2": Facts("nixlv2", (ANSWER,)),
    "mooncake": Facts(
        "mooncake",
        (BOOTSTRAP,),
        roles=(Role.LOOKUP, Role.PREFILL, Role.DECODE),
        prefill_adds=frozenset({"ignore_eos"}),
        prefill_headers=(b"x-data-parallel-rank",),
        ids=frozenset({"transfer_id"}),
    ),
    "sglang": Facts(
        "sglang",
        params=(),
        capped=False,
        adds=frozenset({"bootstrap_host", "bootstrap_port", "bootstrap_room"}),
        ids=frozenset({"bootstrap_room"}),
    ),
    "shared-storage": Facts("shared-storage", (ANSWER,), params=()),
    "shared-storage, decode first": Facts(
        "shared-storage",
        (REFUSAL, ANSWER),
        roles=(Role.DECODE, Role.PREFILL, Role.DECODE),
        params=(),
        adds=frozenset({"cache_hit_threshold"}),
        asks=b'"cache_hit_threshold":0.80',
    ),
    "moriio": Facts("moriio", (ANSWER,), ids=frozenset({"transfer_id"})),
    "moriio, side by side": Facts(
        "moriio", ids=frozenset({"transfer_id"}), options=Options(moriio=MoRIIO(parallel_dispatch=True))
    ),
    "offloading": Facts("offloading", (ANSWER,), ids=frozenset({"kv_request_id"})),
}

# Where a leg of each role goes.
TARGETS = {
    Role.PREFILL: PREFILLER.endpoint.netloc,
    Role.DECODE: "localhost:8200",
    Role.LOOKUP: PREFILLER.endpoint.with_port(8998).netloc,
}
