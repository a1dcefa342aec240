"""What the scripted engine answers, ready to be sent: an SSE stream in pieces, or one JSON answer.

Rule: bytes only, made once. An event is as long as vLLM's for one token of a chat.
"""

from __future__ import annotations

import json

_EVENT = (
    b'data: {"id":"chatcmpl-bench-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1796000000,"model":"bench","choices":[{"index":0,"delta":{"content":" event"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "model": "bench",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "length"}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[11, 12, 13]],
            "remote_engine_id": "bench",
            "remote_request_id": "chatcmpl-bench-0",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        },
    }
).encode()


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def json_answer(content: bytes) -> bytes:
    """A whole answer with this body."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
    return head + content


_SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
# A stream is FIRST, then NEXT for each further event, with END right behind the last one.
FIRST = _SSE_HEAD + _chunk(_EVENT)
NEXT = _chunk(_EVENT)
END = _chunk(_DONE) + LAST_CHUNK
# Serves as a prefiller's answer too: NIXL's parameters for the decoder are in it.
WHOLE = json_answer(_ANSWER)
