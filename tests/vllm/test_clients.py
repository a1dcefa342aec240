"""What programs use: the openai and anthropic SDKs, and curl, against an engine through the sidecar."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.vllm.asking import APIS, Api, fresh_text
from tests.vllm.counters import P2P_READ_BYTES, Risen
from tests.vllm.figures import Figures
from tests.vllm.places import INSIDE, PYTHON
from tests.vllm.pods import Fleet, Pod, Pods
from tests.vllm.processes import free_port
from tests.vllm.scenes import PREFILLER, SOURCE, alone, computed_on

# 21 calls, and two SDKs that take seconds to be imported on busy cores.
SDK_TIMEOUT_S = 240
CURL_TIMEOUT_S = 60


@pytest.fixture
def down(tiers: Pods, fleet: Fleet) -> str:
    """URL of a sidecar whose engine does not listen."""
    return fleet.extra_sidecar(tiers["c"], "down", (f"--model-server-port={free_port('127.0.0.1')}",))


def _outcomes(url: str, down: str, headers: dict[str, str], text: str) -> dict[str, Any]:
    if not PYTHON.exists():
        pytest.skip("vLLM's environment has the SDKs, and it is not installed")
    command = (str(PYTHON), str(INSIDE / "sdk_calls.py"), url, down, json.dumps(headers), text)
    run = subprocess.run(command, capture_output=True, timeout=SDK_TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr.decode()
    outcomes: dict[str, Any] = json.loads(run.stdout)
    return outcomes


NOT_SIMULATED = {"openai tool", "anthropic tool"}
"""The embedded engine calls no tools."""

ERRORS: dict[str, tuple[str, int, str]] = {
    "openai refused by the sidecar": ("openai.BadRequestError", 400, "remote_kv_source"),
    "openai refused by the engine": ("openai.NotFoundError", 404, "does not exist"),
    "openai engine down": ("openai.InternalServerError", 503, "not ready"),
    "anthropic refused by the sidecar": ("anthropic.BadRequestError", 400, "remote_kv_source"),
    "anthropic refused by the engine": ("anthropic.NotFoundError", 404, "does not exist"),
    "anthropic engine down": ("anthropic.ServiceUnavailableError", 503, "not ready"),
}
DROPPED_WHERE_THE_SIDECAR_DIRECTS = {"openai refused by the sidecar", "anthropic refused by the sidecar"}
"""A client's own params, hostile ones too, give way to those of a pull or a handoff."""


@pytest.mark.parametrize("through", ["plain", "pull", "handoff"])
def test_the_sdks_get_answers_tools_and_their_own_errors(
    through: str, tiers: Pods, fleet: Fleet, down: str, figures: Figures
) -> None:
    a, b, c = tiers["a"], tiers["b"], tiers["c"]
    text = fresh_text(100)
    chat, completions = APIS["chat"], APIS["completions"]
    body = chat.body(0, messages=[{"role": "user", "content": text}], ignore_eos=False)
    expected = chat.text_of(computed_on(a, chat, body))
    headers = {"plain": {}, "pull": {SOURCE: a.netloc}, "handoff": {PREFILLER: a.netloc}}[through]
    risen = Risen(b.engine_url)

    outcomes = _outcomes(b.url, down, headers, text)

    figures.note(outcomes=outcomes, moved=risen.by(P2P_READ_BYTES))
    left_out = NOT_SIMULATED if fleet.kind == "embedded" else set()
    texts = [name for name in outcomes if name not in ERRORS | dict.fromkeys(left_out)]
    tools = {name for name in texts if "tool" in name}
    others = {"openai completion", "openai models", "anthropic count"}
    for name in set(texts) - tools - others:
        assert outcomes[name] == expected, name
    for name in tools:
        assert outcomes[name][0] == "forecast", name
        assert outcomes[name][1] in ({"unit": "day"}, {"unit": "hour"}), name
    plain = completions.body(0, prompt=text, ignore_eos=False)
    assert outcomes["openai completion"] == alone(c, completions, plain)
    assert outcomes["openai models"] == ["tiny"]
    assert outcomes["anthropic count"] is True
    for name, (error, status, words) in ERRORS.items():
        seen = outcomes[name]
        if name in DROPPED_WHERE_THE_SIDECAR_DIRECTS and through != "plain":
            assert "error" not in seen, (name, seen)
            continue
        assert (seen["error"], seen["status"]) == (error, status), (name, seen)
        assert words in seen["message"], (name, seen)
    assert (risen.by(P2P_READ_BYTES) > 0) == (through != "plain")


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_curl_sees_the_stream_and_the_one_document(name: str, tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    api = APIS[name]
    body = api.body(100)
    expected = api.text_of(computed_on(a, api, body))
    once = _curl(b, api, body, "--compressed", "-H", f"{SOURCE}: {a.netloc}")
    streamed = _curl(b, api, {**body, "stream": True}, "--no-buffer", "--http1.1")
    assert api.text(json.loads(once)) == expected
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert events.pop() == "[DONE]"
    figures.note(events=len(events))
    assert "".join(api.text(json.loads(event)) for event in events) == expected


def _curl(pod: Pod, api: Api, body: dict[str, Any], *options: str) -> str:
    """What curl prints; it fails on a status from 400 on and on a body that ends early."""
    command = ("curl", "--silent", "--show-error", "--fail", "--max-time", str(CURL_TIMEOUT_S), *options)
    request = ("-H", "content-type: application/json", "--data-binary", "@-", pod.url + api.path)
    run = subprocess.run(
        (*command, *request), input=json.dumps(body).encode(), capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode()
