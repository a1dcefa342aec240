"""Engines die and clients leave at the worst moments; these tests come last in their group.

A pod whose engine has ended is started again when a later test names it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from tests.vllm.asking import ANSWER_TIMEOUT_S, APIS, Answer, Body, post
from tests.vllm.between import between_the_legs
from tests.vllm.counters import P2P_READ_BYTES, Risen, busy, idle_within
from tests.vllm.figures import Figures
from tests.vllm.pods import Fleet, Pod, Pods
from tests.vllm.processes import eventually
from tests.vllm.scenes import PREFILLER, PROMPT_TOKENS, SOURCE, Lines, alone, computed_on
from tests.vllm.test_pull_refused import NOBODY

COMPLETIONS = APIS["completions"]
LONG_PROMPT_TOKENS = 8000
"""Thirty steps of an engine: several of these keep it busy for seconds."""
LONG_ANSWER_TOKENS = 4000
CLIENTS = 4
IDLE_WITHIN_S = 2.0
"""Issue: after a client has gone, running and waiting are back to 0 within this."""
HANG_S = 20.0
"""A pull takes well under a second; one that has not answered after this long hangs."""


def _request(pod: Pod, body: Body, headers: dict[str, str]) -> bytes:
    content = json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {COMPLETIONS.path} HTTP/1.1\r\nhost: {pod.netloc}\r\ncontent-type: application/json\r\n{lines}"
    )
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


@contextlib.contextmanager
def clients(pod: Pod, bodies: list[Body], headers: dict[str, str]) -> Iterator[list[socket.socket]]:
    """Clients that have asked and not read; they go away at the end of the block."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for body in bodies:
            client = stack.enter_context(socket.create_connection((pod.spec.ip, pod.port), 5))
            client.sendall(_request(pod, body, headers))
            sockets.append(client)
        yield sockets


class Asking(threading.Thread):
    """A request that is under way. answer: once there is one. took_s: until then."""

    def __init__(self, url: str, body: Body, headers: dict[str, str], timeout_s: float) -> None:
        super().__init__(name="asking")
        self._ask = (url + COMPLETIONS.path, body, headers, timeout_s)
        self.answer: Answer | None = None
        self.took_s = 0.0

    def run(self) -> None:
        """Ask; without an answer in time, go away."""
        url, body, headers, timeout_s = self._ask
        began_s = monotonic()
        with contextlib.suppress(httpx.TimeoutException):
            answer = httpx.post(url, json=body, headers=headers, timeout=timeout_s)
            self.answer = Answer(answer.status_code, answer.headers, answer.content)
        self.took_s = monotonic() - began_s


def asked(url: str, body: Body, headers: dict[str, str], timeout_s: float) -> Asking:
    """The outcome of a request that may hang."""
    asking = Asking(url, body, headers, timeout_s)
    asking.run()
    return asking


def test_clients_that_leave_during_prefill_leave_no_work_behind(tiers: Pods, figures: Figures) -> None:
    p, d = tiers["a"], tiers["b"]
    bodies = [COMPLETIONS.body(LONG_PROMPT_TOKENS) for _ in range(CLIENTS)]
    lines, at_d = Lines(d.log_name), Risen(d.engine_url)

    with clients(d, bodies, {PREFILLER: p.netloc}):
        assert eventually(lambda: busy(p.engine_url) > 0, 10)
    left_s = monotonic()
    idle = idle_within(p.engine_url, IDLE_WITHIN_S)
    took_s = monotonic() - left_s

    assert eventually(lambda: len(lines.exchanges()) == CLIENTS, 5)
    gone = [line for line in lines.exchanges() if line.get("error") == "client_gone"]
    figures.note(gone=len(gone), idle_after_s=round(took_s, 1), d=at_d.all())
    assert idle
    assert len(gone) >= CLIENTS - 1, "the first prefill may be done by then"
    assert busy(d.engine_url) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_during_the_answer_leave_no_work_behind(
    stream: bool, tiers: Pods, figures: Figures
) -> None:
    d = tiers["b"]
    bodies = [COMPLETIONS.body(40, stream=stream, max_tokens=LONG_ANSWER_TOKENS) for _ in range(CLIENTS)]
    generated = Risen(d.engine_url)
    with clients(d, bodies, {}) as sockets:
        if stream:
            for client in sockets:
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert eventually(lambda: generated.by("generation_tokens_total") > 20, ANSWER_TIMEOUT_S)
        assert busy(d.engine_url) == CLIENTS
    left_s = monotonic()
    idle = idle_within(d.engine_url, IDLE_WITHIN_S)
    tokens = generated.by("generation_tokens_total")
    figures.note(idle_after_s=round(monotonic() - left_s, 1), generated_tokens=tokens)
    assert idle
    assert tokens < CLIENTS * LONG_ANSWER_TOKENS


WATCHED_S = 50.0
"""How long the hang without rescue is watched. Seen on vLLM 0.32: between engines that have pulled before,
four pulls in a row hung over 110 s each; between engines that have not, the engine gives up after 30 s."""
RESCUE_AFTER_S = 3.0
"""For the sidecar with rescue: many times what a pull takes here."""


def test_without_guard_and_rescue_one_dead_source_makes_every_later_pull_hang(
    tiers: Pods, fleet: Fleet, figures: Figures
) -> None:
    a, b, c = tiers["a"], tiers["b"], tiers["c"]
    unguarded = ("--kv-connector=offloading", "--source-guard=off")
    bare = fleet.extra_sidecar(b, "bare", (*unguarded, "--pull-rescue-after=0"))
    rescuing = fleet.extra_sidecar(b, "rescuing", (*unguarded, f"--pull-rescue-after={RESCUE_AFTER_S:g}s"))
    body = COMPLETIONS.body(PROMPT_TOKENS)
    computed_on(a, COMPLETIONS, body)
    risen = Risen(b.engine_url)
    before = asked(bare, body, {SOURCE: a.netloc}, HANG_S)
    before_bytes = risen.by(P2P_READ_BYTES)
    body = COMPLETIONS.body(PROMPT_TOKENS)
    dead = asked(bare, body, {SOURCE: f"{NOBODY}:{b.port}"}, ANSWER_TIMEOUT_S)
    assert dead.answer is not None
    assert COMPLETIONS.text_of(dead.answer) == alone(c, COMPLETIONS, body)
    # Seen on vLLM 0.32: healthy peers are dropped within 10 s of the contact.
    sleep(10)

    bodies = [COMPLETIONS.body(PROMPT_TOKENS) for _ in range(3)]
    for body in bodies:
        computed_on(a, COMPLETIONS, body)
    live = asked(bare, bodies[0], {SOURCE: a.netloc}, WATCHED_S)
    plain = asked(b.url, COMPLETIONS.body(PROMPT_TOKENS), {}, HANG_S)
    rescued = asked(rescuing, bodies[1], {SOURCE: a.netloc}, HANG_S)
    following = asked(rescuing, bodies[2], {SOURCE: a.netloc}, HANG_S)

    idle = idle_within(b.engine_url, IDLE_WITHIN_S)
    figures.note(
        before_took_s=round(before.took_s, 1),
        before_bytes=before_bytes,
        dead_status=dead.answer.status,
        dead_took_s=round(dead.took_s, 1),
        live="hangs" if live.answer is None else live.answer.status,
        live_took_s=round(live.took_s, 1),
        plain="hangs" if plain.answer is None else plain.answer.status,
        rescued="hangs" if rescued.answer is None else rescued.answer.status,
        rescued_took_s=round(rescued.took_s, 1),
        following_took_s=round(following.took_s, 1),
        idle_afterwards=idle,
    )
    b.engine.kill()
    assert before_bytes > 0
    assert live.answer is None
    assert live.took_s >= WATCHED_S
    assert plain.answer is not None
    assert rescued.answer is not None
    assert COMPLETIONS.text_of(rescued.answer) == alone(c, COMPLETIONS, bodies[1])
    assert RESCUE_AFTER_S <= rescued.took_s < HANG_S
    assert following.answer is not None
    assert following.took_s < RESCUE_AFTER_S


def test_a_source_that_dies_during_the_pull_costs_time_but_not_the_answer(
    tiers: Pods, figures: Figures
) -> None:
    a, b, source = tiers["a"], tiers["b"], tiers["c"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    expected = COMPLETIONS.text_of(computed_on(source, COMPLETIONS, body))
    # A stopped engine still has its port open: the guard lets the pull go, and nobody answers it.
    source.engine.signal(signal.SIGSTOP)
    asking = Asking(b.url, body, {SOURCE: source.netloc}, ANSWER_TIMEOUT_S)
    asking.start()
    assert eventually(lambda: busy(b.engine_url) > 0, 10)
    sleep(1)
    answered_while_stopped = asking.answer is not None
    source.engine.kill()
    asking.join()

    body = COMPLETIONS.body(PROMPT_TOKENS)
    computed_on(a, COMPLETIONS, body)
    risen = Risen(b.engine_url)
    later = asked(b.url, body, {SOURCE: a.netloc}, HANG_S)
    figures.note(
        answered_while_stopped=answered_while_stopped,
        status=asking.answer and asking.answer.status,
        took_s=round(asking.took_s, 1),
        later="hangs" if later.answer is None else later.answer.status,
        later_bytes=risen.by(P2P_READ_BYTES),
    )
    assert asking.answer is not None
    assert asking.answer.status == 200
    assert COMPLETIONS.text_of(asking.answer) == expected


def test_a_decoder_that_dies_in_the_middle_of_a_stream_ends_it_with_an_error_and_a_cut(
    tiers: Pods, figures: Figures
) -> None:
    b = tiers["b"]
    body = COMPLETIONS.body(40, stream=True, max_tokens=LONG_ANSWER_TOKENS)
    received: list[str] = []
    cut = ""
    try:
        with httpx.stream("POST", b.url + COMPLETIONS.path, json=body, timeout=ANSWER_TIMEOUT_S) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                received += [line] if line else []
                if len(received) == 5:
                    b.engine.kill()
    except httpx.RemoteProtocolError as error:
        cut = str(error)

    last = json.loads(received[-1].removeprefix("data: "))
    refused = post(b.url, COMPLETIONS.path, body)
    figures.note(events=len(received), last=last, cut=cut, next=refused.status)
    assert last["error"]["code"] == 502
    assert "incomplete" in cut or "without" in cut
    assert (refused.status, refused.headers["x-sidecar-error"]) == (503, "503")


def test_a_p2p_prefiller_that_dies_between_the_legs_is_computed_for(tiers: Pods, figures: Figures) -> None:
    p, d, other = tiers["a"], tiers["b"], tiers["c"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    with between_the_legs(p.engine_url, p.engine.kill) as stand_in:
        asking = asked(d.url, body, {PREFILLER: stand_in}, ANSWER_TIMEOUT_S)
    expected = alone(other, COMPLETIONS, body)
    later = COMPLETIONS.body(PROMPT_TOKENS)
    computed_on(other, COMPLETIONS, later)
    risen = Risen(d.engine_url)
    pull = asked(d.url, later, {SOURCE: other.netloc}, HANG_S)
    figures.note(
        status=asking.answer and asking.answer.status,
        took_s=round(asking.took_s, 1),
        later="hangs" if pull.answer is None else pull.answer.status,
        later_bytes=risen.by(P2P_READ_BYTES),
    )
    assert asking.answer is not None
    assert asking.answer.status == 200
    assert COMPLETIONS.text_of(asking.answer) == expected


def test_a_nixl_prefiller_that_dies_between_the_legs_is_the_engines_own_error(
    nixl: Pods, figures: Figures
) -> None:
    p, d = nixl["p"], nixl["d"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    lines = Lines(d.log_name)
    with between_the_legs(p.engine_url, p.engine.kill) as stand_in:
        asking = asked(d.url, body, {PREFILLER: stand_in}, ANSWER_TIMEOUT_S)
    assert asking.answer is not None
    legs: list[Any] = [(leg["role"], leg["status"]) for leg in lines.last()["legs"]]
    figures.note(status=asking.answer.status, took_s=round(asking.took_s, 1), legs=legs)
    # kv_load_failure_policy "fail": the engine's 500 is passed on as it is.
    assert asking.answer.status == 500
    assert "x-sidecar-error" not in asking.answer.headers
    assert legs == [("prefill", 200), ("decode", 500)]
    assert post(d.url, COMPLETIONS.path, COMPLETIONS.body(40)).status == 200
