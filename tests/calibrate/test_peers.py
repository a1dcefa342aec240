"""Peers that are no engines, or whose counters prove nothing: whose fault it is, and the exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from sidecar.calibrate import legs, measuring
from sidecar.calibrate.cli import main
from sidecar.calibrate.legs import Couple
from sidecar.calibrate.measuring import Found, measure
from sidecar.calibrate.outcomes import Outcome
from sidecar.calibrate.plan import Kind, Leg
from sidecar.calibrate.tokens import Prompts
from sidecar.calibrate.verdicts import Verdict
from sidecar.endpoint import Endpoint
from sidecar.remote import by_header
from tests.calibrate.peers import HTML, METRICS, Said, asked, completion, counting, peer

TARGET = Endpoint("10.0.0.9", 8000)


@pytest.mark.parametrize(
    ("path", "said", "code", "line"),
    [
        *(
            ("/v1/models", said, 1, f"{line}; --model says which to ask for")
            for said, line in (
                (HTML, "answered 200 (text/html, 6 bytes) at /v1/models: no JSON"),
                ((302, "text/html", b"moved"), "answered 302 (text/html, 5 bytes) at /v1/models"),
                ((500, "text/plain", b"oops!"), "answered 500 (text/plain, 5 bytes) at /v1/models"),
                (
                    (200, "application/json", b"[" * 200_000),
                    "answered 200 (application/json, 200,000 bytes) at /v1/models: JSON nested too deep",
                ),
                (
                    (200, "application/json", b'{"data":[{"id":"\\ud800"}]}'),
                    "names no model that can be printed at /v1/models",
                ),
            )
        ),
        ("/metrics", (404, "text/plain", b"none"), 9, "serves no metrics of vLLM's at /metrics"),
        ("/metrics", HTML, 9, "serves no metrics of vLLM's at /metrics"),
        *(
            (
                "/metrics",
                (200, "text/plain", METRICS % value),
                9,
                f"no counter is vllm:kv_offload_tiering_read_bytes_total {value.decode()}",
            )
            for value in (b"NaN", b"+Inf")
        ),
    ],
)
async def test_what_is_no_engine_is_refused_before_anything_is_measured(
    path: str, said: Said, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with peer({path: said}) as source:
        flags = (f"--source=http://{source.netloc}", "--consumer=http://127.0.0.1:1", "--yes")
        assert await asyncio.to_thread(main, flags) == code
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"sidecar calibrate: http://{source.netloc}: {line}\n")


class Counting:
    """A source that stores each prompt, and so is never waited for."""

    def __init__(self) -> None:
        self.stored = 0

    def __call__(self) -> Said:
        self.stored += 4096
        return counting(stored=self.stored, computed=0)


async def measured(
    says: dict[str, Said | Callable[[], Said]],
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind = Kind.PULL,
    seeded: Said = completion(513),  # noqa: B008 - a constant
) -> tuple[Found, str]:
    """What a run of one leg finds with a consumer that says so, and the consumer's URL."""
    monkeypatch.setattr(legs, "QUIET_S", 0.0)
    found = Found()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(peer({"/v1/completions": seeded, "/metrics": Counting()}))
        consumer = await stack.enter_async_context(peer(says))
        one, other = [await stack.enter_async_context(asked(peer)) for peer in (source, consumer)]
        prompts = Prompts("salt", range(1000, 2000))
        couple = Couple(one, other, "tiny", 16, prompts, lambda _: by_header(TARGET))
        if kind is Kind.PULL:
            await measure([couple], [Leg(0, 0, kind, 512)], found, lambda _: None)
        else:
            found.measured.append(await measuring._run(couple, Leg(0, 0, kind, 512)))
    return found, f"http://{consumer.netloc}"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (HTML, "answered 200 (text/html) without a token or without its usage"),
        ((500, "text/html", b"<p>prompt</p>"), "answered 500 (text/html, 13 bytes)"),
        ((302, "text/html", b"moved"), "answered 302 (text/html, 5 bytes)"),
        ((400, "application/json", b'{"error":{"message":"no \\u001b[2J"}}'), r"answered 400: no \x1b[2J"),
    ],
)
async def test_a_consumer_that_never_completes_anything_has_failed_itself(
    said: Said, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, url = await measured({"/v1/completions": said}, monkeypatch)
    assert [one.verdict for one in found.warm] == [Verdict.FAILED]
    assert found.gone == f"{url}: {told}"


async def test_a_consumer_that_fails_with_a_directive_only_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([HTML, completion(65)])
    found, _ = await measured({"/v1/completions": lambda: next(answers)}, monkeypatch)
    assert ([one.verdict for one in found.warm], found.gone) == ([Verdict.FAILED], None)


@pytest.mark.parametrize("kind", Kind)
async def test_counters_that_fell_prove_nothing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([5000.0])
    metrics = lambda: counting(pulled=next(counts, 64.0), computed=513)  # noqa: E731 - a peer's answers
    said: dict[str, Said | Callable[[], Said]] = {"/v1/completions": completion(513), "/metrics": metrics}
    found, url = await measured(said, monkeypatch, kind)
    one = (found.warm or found.measured)[0]
    assert (one.verdict, one.reason) == (Verdict.UNUSABLE, f"{url}: its counters fell meanwhile")


async def test_counters_that_are_no_numbers_any_more_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = (200, "text/plain", METRICS % b"NaN")
    found, url = await measured({"/metrics": metrics}, monkeypatch)
    name = "vllm:kv_offload_tiering_read_bytes_total"
    assert {(one.verdict, one.reason) for one in found.warm} == {
        (Verdict.UNUSABLE, f"{url}: no counter is {name} NaN")
    }


async def test_a_source_that_counts_no_prompt_tokens_measures_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = await measured({}, monkeypatch, seeded=completion(0))
    assert found.gone is not None
    assert found.gone.endswith(": counts 0 prompt tokens, no whole block")


def test_every_code_is_one_of_the_table() -> None:
    assert {int(one) for one in Outcome} == {*range(10), 70, 74, 130}
