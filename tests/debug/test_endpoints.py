"""The debug endpoints of a running sidecar: where they are, what they tell, and what they never do."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from sidecar.debug import endpoints
from tests.debug.serving import DEBUG, Debugged, debugging
from tests.engines import Answer, Got, complete, prefilled, scripted
from tests.serving import BODY, PREFILLER, SOURCE, post
from tests.test_answers import closed_port

PULLS = "--kv-connector=offloading"
PATH = "/v1/chat/completions"


@contextmanager
def p2p_port() -> Iterator[int]:
    """A P2P port that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def pulling(port: int) -> tuple[str, ...]:
    return (DEBUG, PULLS, f"--p2p-connector-port={port}")


async def test_an_answer_tells_what_was_done_for_it_to_those_who_ask() -> None:
    with p2p_port() as port:
        async with scripted() as engine, debugging(engine.port, *pulling(port)) as sidecar:
            asked = [("x-sidecar-debug", "1"), (SOURCE, "127.0.0.1:9")]
            told = await sidecar.data.post(headers=asked)
            plain = await sidecar.data.post(headers=asked[1:])
            off = await sidecar.data.post(headers=[("X-Sidecar-Debug", "0"), *asked[1:]])

    [timing] = told.all("server-timing")
    found = re.findall(r"(\w+);dur=([0-9.]+)", timing)
    assert [name for name, _ in found] == ["decode", "pull", "sidecar", "total"]
    durations = {name: float(value) for name, value in found}
    assert 0 < durations["decode"] <= durations["total"] < 5000
    assert durations["total"] == pytest.approx(durations["decode"] + durations["sidecar"], abs=0.01)
    assert told.all("x-sidecar-route") == [f'decode="localhost:{engine.port}"']
    [pull] = told.all("x-sidecar-pull")
    uuid = engine.requests[0].json["kv_transfer_params"]["remote_kv_source"]["kv_request_id"]
    assert pull == f'directed;leg=decode;source="127.0.0.1:{port}";kv-request-id="{uuid}"'
    for answer in (plain, off):
        assert [name for name, _ in answer.headers if "sidecar" in name or "timing" in name] == []
    assert all(got.all("x-sidecar-debug") == [] for got in engine.requests)


async def test_errors_and_what_is_passed_through_tell_it_too() -> None:
    debug = [("x-sidecar-debug", "1")]
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        refused = await sidecar.data.post(body=b"[", headers=debug)
        passed = await sidecar.data.post("/v1/embeddings", headers=debug)
    assert (refused.status, refused.all("x-sidecar-pull"), refused.whole) == (400, ["none"], True)
    assert passed.all("x-sidecar-route") == [f'decode="localhost:{engine.port}"']
    assert engine.last.all("x-sidecar-debug") == []


async def test_without_the_flag_the_header_is_any_header_and_there_are_no_endpoints() -> None:
    async with scripted() as engine, debugging(engine.port) as sidecar:
        answer = await sidecar.data.post(headers=[("x-sidecar-debug", "1")])
        assert engine.last.all("x-sidecar-debug") == ["1"]
        assert answer.all("server-timing") == []
        for path in ("/debug/", "/debug/pulls", "/debug/events"):
            assert (await sidecar.get(path)).status == 404


async def test_on_the_data_port_they_are_paths_of_the_engine() -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        for path in ("/debug/pulls", "/debug/", "/debug/events"):
            answer = await sidecar.data.ask(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert (answer.json["id"], engine.last.target) == ("c", path)
        assert (await sidecar.data.post("/debug/explain")).json["id"] == "c"
        assert engine.last.body == BODY


async def test_an_explanation_shows_the_legs_that_a_request_then_makes() -> None:
    async with (
        scripted(complete) as decoder,
        scripted(prefilled) as prefiller,
        debugging(decoder.port, DEBUG) as sidecar,
    ):
        headers = [(PREFILLER, prefiller.netloc), ("authorization", "Bearer secret"), ("x-kept", "1")]
        told = await sidecar.explain(PATH, BODY, [*headers, ("x-sidecar-debug", "1")], "&prompts=1")
        assert (decoder.requests, prefiller.requests, decoder.connections, prefiller.connections) == (
            [],
            [],
            0,
            0,
        )
        assert (await sidecar.data.post(PATH, BODY, headers)).status == 200

    first, second = told["legs"]
    assert (first["url"], first["body"]) == (f"http://{prefiller.netloc}{PATH}", prefiller.last.json)
    assert second["url"] == f"http://localhost:{decoder.port}{PATH}"
    placeholder, real = second["body"].pop("kv_transfer_params"), decoder.last.json
    assert placeholder["remote_engine_id"] == "<from the prefiller's answer>"
    assert real.pop("kv_transfer_params")["remote_engine_id"] == "engine-p"
    assert second["body"] == real
    for leg, engine in ((first, prefiller), (second, decoder)):
        sent = [f"{name}: {value}" for name, value in engine.last.headers]
        shown = [text for text in leg["headers"] if not text.startswith(("x-request-id", "authorization"))]
        assert set(shown) < set(sent)
        assert "authorization: <elided: 13 bytes>" in leg["headers"]
    assert "secret" not in json.dumps(told)


async def test_an_explanation_elides_prompts_unless_asked() -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        told = await sidecar.explain(PATH, b'{"messages":[{"content":"secret"}],"n":1.0}')
    [leg] = told["legs"]
    assert leg["body"] == {"messages": "<elided: 22 bytes>", "n": 1.0}
    assert told["why"] == ["no routing header: the local engine answers alone"]


async def test_an_explanation_uses_what_the_guard_knows_and_probes_nothing() -> None:
    gone = closed_port()
    headers = [(SOURCE, "127.0.0.1:9")]
    flags = (DEBUG, PULLS, f"--p2p-connector-port={gone}", "--source-guard-bad-ttl=1m")
    async with scripted() as engine, debugging(engine.port, *flags) as sidecar:
        unknown = await sidecar.explain(PATH, BODY, headers)
        assert (unknown["route"]["guard"], unknown["route"]["pulls"]) == ("unknown", True)
        await sidecar.data.post(headers=headers)
        refused = await sidecar.explain(PATH, BODY, headers)
    assert (refused["route"]["no_pull"], refused["legs"][0]["pull"]) == ("source_unreachable", None)
    assert refused["legs"][0]["body_bytes"] == len(BODY)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "message"),
    [
        (PATH, b"[]", [], 400, "the body must be a JSON object"),
        (PATH, BODY, [(PREFILLER, "nowhere")], 400, "header x-prefiller-host-port: no port"),
        (PATH, BODY, [("content-encoding", "br")], 415, "header content-encoding"),
        (PATH, b"x" * 101, [], 413, "the body is over the limit of 100 bytes (--max-request-bytes)"),
        ("/v1/responses", b'{"background":true,"input":""}', [], 400, 'field "background" is not supported'),
    ],
)
async def test_a_request_that_would_be_refused_says_so(
    path: str, body: bytes, headers: list[tuple[str, str]], status: int, message: str
) -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG, "--max-request-bytes=100") as sidecar:
        told = await sidecar.explain(path, body, headers)
    assert (told["answer"], told["legs"], told["refusal"]["status"]) == ("refused", [], status)
    assert told["refusal"]["message"].startswith(message)


async def test_a_path_that_is_not_routed_would_pass_through() -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        told = await sidecar.explain("/v1/embeddings", b"anything", [(PREFILLER, "10.0.0.1:1")])
    assert told["answer"] == "passed through"
    assert [leg["url"] for leg in told["legs"]] == [f"http://localhost:{engine.port}/v1/embeddings"]


async def test_exchanges_are_remembered_with_their_pulls_and_why_some_had_none() -> None:
    with p2p_port() as port:
        async with scripted() as engine, debugging(engine.port, *pulling(port)) as sidecar:
            for headers in ([(SOURCE, "127.0.0.1:9")], [], [(SOURCE, "broken")]):
                await sidecar.data.post(body=b'{"prompt":"secret"}', headers=headers)
            await sidecar.data.ask(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await sidecar.get("/debug/pulls")
            skipped = await sidecar.exchanges("?outcome=skipped,none&limit=1")
            by_repetition = await sidecar.exchanges("?outcome=skipped&outcome=none")

    told = answer.json["exchanges"]
    assert [one["number"] for one in told] == [3, 2, 1]
    assert [one["outcome"] for one in told[:2]] == ["skipped", "none"]
    assert told[0]["reason"] == "source_malformed"
    assert told[2]["legs"][0]["pull"]["source"] == f"127.0.0.1:{port}"
    assert b"secret" not in answer.body
    assert [one["number"] for one in skipped] == [3]
    assert [one["number"] for one in by_repetition] == [3, 2]
    assert answer.json["worker"]["of_processes"] == 1


async def test_the_ring_is_as_long_as_the_flag_says() -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG, "--debug-ring=2") as sidecar:
        for _ in range(3):
            await sidecar.data.post()
        assert [one["number"] for one in await sidecar.exchanges()] == [3, 2]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?outcome=gone", "outcome: 'gone' is none of moved, partial"),
        ("?limit=x", "limit: 'x' is no whole number"),
    ],
)
async def test_a_wrong_question_is_answered_400(query: str, said: str) -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        answer = await sidecar.get(f"/debug/pulls{query}")
    assert answer.status == 400
    assert answer.json["error"].startswith(said)


async def test_events_begin_with_all_that_is_known_and_go_on_with_what_is_new() -> None:
    with p2p_port() as port:
        async with scripted() as engine, debugging(engine.port, *pulling(port)) as sidecar:
            await sidecar.data.post()
            async with sidecar.events() as events:
                name, hello = await anext(events)
                assert (name, [one["number"] for one in hello["exchanges"]]) == ("hello", [1])
                assert hello["sources"] == []
                config = {one["name"]: one["value"] for one in hello["config"]}
                assert (config["--debug-endpoints"], config["--p2p-connector-port"]) == ("true", str(port))
                assert "--configuration" not in config
                await sidecar.data.post(headers=[(SOURCE, "127.0.0.1:9")])
                heard = dict([await anext(events), await anext(events)])
    assert [one["number"] for one in heard["exchanges"]] == [2]
    [source] = heard["sources"]
    assert (source["source"], source["guard"], source["guard_holds"]) == (
        f"127.0.0.1:{port}",
        "accepts",
        True,
    )


async def test_events_end_at_once_when_the_sidecar_stops() -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar, sidecar.events() as events:
        assert (await anext(events))[0] == "hello"
        began_s = monotonic()
        await sidecar.data.stop()
        assert [event async for event in events] == []
        assert monotonic() - began_s < 3


async def test_viewers_are_bounded_and_one_that_leaves_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_VIEWERS", 1)
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        async with sidecar.events() as events:
            await anext(events)
            assert (await sidecar.get("/debug/events")).status == 503
        async with asyncio.timeout(5):
            while not await _admitted(sidecar):
                await asyncio.sleep(0.02)


async def _admitted(sidecar: Debugged) -> bool:
    async with sidecar.debug.connected() as (reader, writer):
        writer.write(b"GET /debug/events HTTP/1.1\r\nhost: x\r\n\r\n")
        return (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_the_page_may_run_its_own_script_and_load_nothing() -> None:
    async with scripted() as engine, debugging(engine.port, DEBUG) as sidecar:
        answer = await sidecar.get("/debug/")
        bare = await sidecar.get("/debug")
    assert (bare.status, answer.status) == (307, 200)
    [policy] = answer.all("content-security-policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert re.findall(rb"https?://(?!www\.w3\.org/2000/svg)", answer.body) == []


async def test_a_debugged_stream_is_relayed_as_any_other() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(b"data: 1\n\n", b"data: 2\n\n", gap_s=0.01)

    async with scripted(script) as engine, debugging(engine.port, DEBUG) as sidecar:
        answer = await sidecar.data.ask(post(headers=[("x-sidecar-debug", "1")]))
    assert (answer.body, answer.whole) == (b"data: 1\n\ndata: 2\n\n", True)
    assert len(answer.all("server-timing")) == 1
