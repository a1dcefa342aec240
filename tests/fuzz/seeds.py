"""Where fuzzing starts at each seam: what the suite already holds to be worth a look.

Rule: made of the corpora of other tests, so that a case that is added there is a seed here.
"""

from __future__ import annotations

from tests.engines import PREFILLED
from tests.faults.broken import FAULTS
from tests.faults.ways import STREAM, WAYS
from tests.server.corpus import OTHERWISE, REFUSED, SERVED

# Longer seeds teach little and make each run slow; what is large is large by repetition.
MAX_SEED_BYTES = 4096

_BODIES = (
    b"{}",
    b'{"a":1,"a":2}',
    b'{ "model" : "m","max_tokens":1.0e1,"x":"\\ud83d","\\u006dodel":[1e999,-0]}',
    b'{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_port":1}}',
    b'{"vllm_xargs":{"kv_transfer_params":"{}"},"prompt":["a","b"],"sampling_params":{"max_tokens":5}}',
    b'{"input":[{"type":"message","content":[{"type":"input_file","file_id":"f"}]}],"background":false}',
    b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}],"tools":[{}]}',
    b'{"tool_choice":{"type":"function"},"response_format":{},"n":3,"logprobs":true,"thinking":{}}',
    b'[1, "\\ude00", {"a":[]}, null]',
    b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"a":NaN}',
    b'{"a":"\xff"}',
    b"\xef\xbb\xbf{}",
)
_HEADERS = (
    b"x-prefiller-host-port: a:1, [::1]:2\nX-Prefiller-Host-Port: http://b:3",
    b"x-kv-cache-source-host-port: :8000\nconnection: x-request-id, close",
    b"x-llm-d-encoder-hosts-ports: e:1,,f:99999\nx-data-parallel-host-port: 10.0.0.1:8001",
)
_STREAMS = (
    b"\x03\x05" + STREAM,
    b"\x30\x01" + b'data: {"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}}\n\n',
    b"\x01\x02" + b'data:{"response":{"usage":{"input_tokens":1}}}\r\n\r\ndata: [DONE]\r\r',
    b"\x00\xff" + b'event: x\ndata: {"usage":null}\ndata: {"usage":\n\n: "usage"\n\nid',
)


def _answers() -> list[bytes]:
    import json

    content = json.dumps(PREFILLED).encode()
    said = [fault.says("application/json", content) for fault in FAULTS.values()]
    said += [fault.says("text/event-stream", STREAM) for fault in FAULTS.values()]
    # Found by fuzzing: llhttp takes a length for one even where no body can be.
    said.append(b"HTTP/1.1 199 OK\r\ncontent-length: 2\r\n\r\n[eHTTP/1.1 202 OK\r\nx: y\r\n\r\n")
    return [method + wire for wire in said for method in (b"P", b"H")]


def _short(seeds: list[bytes]) -> list[bytes]:
    return sorted({seed for seed in seeds if len(seed) <= MAX_SEED_BYTES})


SEEDS: dict[str, list[bytes]] = {
    "bodies": _short([*_BODIES, *(way.body(stream=True) for way in WAYS.values())]),
    "requests": _short(
        [
            *REFUSED.values(),
            *(wire for _, wire in OTHERWISE.values()),
            *(wire for wire, _ in SERVED.values()),
            *_HEADERS,
        ]
    ),
    "streams": _short(list(_STREAMS)),
    "responses": _short(_answers()),
}
