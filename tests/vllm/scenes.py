"""What the scenarios have in common: routing headers, prompts computed beforehand, the sidecar's lines.

Rule: asserts only that the scene is set; what a scenario promises is asserted in its test.
"""

from __future__ import annotations

import json
import time
from typing import Any

from tests.vllm.asking import Answer, Api, Body, post, pulled_tokens
from tests.vllm.counters import STORED_BYTES, Risen
from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.places import LOGS
from tests.vllm.pods import Pod
from tests.vllm.processes import eventually

SOURCE = "x-kv-cache-source-host-port"
PREFILLER = "x-prefiller-host-port"

PROMPT_TOKENS = 161
"""Five blocks of 32 and one token more, which is computed wherever the blocks come from."""
PREFIX_TOKENS = 96
"""Three blocks: what a source holds of a prompt of PROMPT_TOKENS."""
# A sidecar writes its lines together, every 0.1 s: this long after an answer its line has been written.
_LINES_LATE_S = 0.5
_LINE_WITHIN_S = 5.0


def computed_on(pod: Pod, api: Api, body: Body) -> Answer:
    """One engine alone answers, and has its blocks ready for peers when this returns."""
    risen = Risen(pod.engine_url)
    answer = post(pod.engine_url, api.path, body)
    assert answer.status == 200, answer.content
    stored_bytes = pulled_tokens(api.usage_of(answer).prompt_tokens) * KV_BYTES_PER_TOKEN
    assert risen.settled(STORED_BYTES, stored_bytes) >= stored_bytes
    return answer


def alone(pod: Pod, api: Api, body: Body) -> str:
    """The text that one engine gives by itself."""
    answer = post(pod.engine_url, api.path, body)
    assert answer.status == 200, answer.content
    return api.text_of(answer)


class Lines:
    """The lines that a sidecar writes about exchanges from now on."""

    def __init__(self, log_name: str) -> None:
        self._path = LOGS / f"{log_name}.log"
        time.sleep(_LINES_LATE_S)  # none of what went before is in them
        self._from_byte = self._path.stat().st_size

    def exchanges(self) -> list[dict[str, Any]]:
        """Those written until now."""
        with self._path.open("rb") as file:
            file.seek(self._from_byte)
            lines = [json.loads(line) for line in file.read().splitlines() if line.startswith(b"{")]
        return [line for line in lines if line.get("message") == "exchange" or "legs" in line]

    def last(self) -> dict[str, Any]:
        """The last one, as soon as there is one."""
        assert eventually(lambda: bool(self.exchanges()), _LINE_WITHIN_S)
        return self.exchanges()[-1]
