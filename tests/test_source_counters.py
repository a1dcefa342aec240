"""Sources asked what they gave, on real sockets: the third layer of a pull's verification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import monotonic

import pytest

from sidecar import source_counters
from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers import LegRecord, Observer, Observers, PullRecord
from sidecar.plan import Peer, Pull, Role
from sidecar.routing import Route
from sidecar.source_counters import SourceCounters
from tests.engines import Answer, Got, complete, scripted
from tests.observers.play import DECODER, chat, leg
from tests.observers.test_pull_metrics import pulled
from tests.serving import PREFILLER, SOURCE, Served, serving
from tests.test_answers import closed_port
from tests.test_verify import Engine

LIVE = (
    "--kv-connector=offloading",
    "--pull-verification=on",
    "--pull-verification-interval=300ms",
    "--pull-verification-source-interval=50ms",
)
FLAGS = (*LIVE, "--source-guard=off")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_counters, "TICK_S", 0.02)
    monkeypatch.setattr(source_counters, "LATE_S", 0.3)


class Told(Observer):
    """What observers are told. in_time: what was known of the source when the pull was told."""

    def __init__(self) -> None:
        self.in_time: list[Says | None] = []
        self.pulls: list[PullRecord] = []
        self.says: list[Says | None] = []

    def pull(self, record: PullRecord) -> None:
        self.pulls.append(record)
        self.in_time.append(record.source_says)

    def source(self, record: PullRecord) -> None:
        self.says.append(record.source_says)

    async def of(self, count: int) -> list[Says | None]:
        """Wait until sources have spoken that often."""
        async with asyncio.timeout(5):
            while len(self.says) < count:
                await asyncio.sleep(0.005)
        return self.says


@dataclass
class Giver:
    """A source engine with what it gave to peers, or with vLLM's two counters where `stored` is known.

    looks: when each look began. takes_s: how long it needs to answer one.
    """

    gave: int = 0
    stored: int | None = None
    status: int = 200
    takes_s: float = 0.0
    looks: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    asked: list[Got] = field(default_factory=list)

    async def script(self, got: Got, answer: Answer) -> None:
        self.asked.append(got)
        self.looks.append(monotonic())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_once -= 1
        text = self.text().encode()
        await answer.raw(
            f"HTTP/1.1 {self.status} Said\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text
        )

    def text(self) -> str:
        if self.stored is None:
            return f"lab:p2p_served_bytes_total {self.gave}\n"
        written = 'vllm:kv_offload_tiering_write_bytes_total{engine="0",tier="1:p2p"}'
        stored = 'vllm:kv_offload_store_bytes_total{engine="0"}'
        return f"{written} {self.gave + self.stored}\n{stored} {self.stored}\n"


class Counting(Engine):
    """A decoder whose P2P count is a sum: what each pull moves is set before it."""

    moved: int = 0
    next: int = 0

    async def script(self, got: Got, answer: Answer) -> None:
        if got.target != "/metrics":
            self.moved += self.next
        await super().script(got, answer)

    def text(self) -> bytes:
        self.pulls, self.gives = 1, (self.moved, self.moved // 64)
        return super().text()


@dataclass
class Scene:
    """A source, a decoder, a sidecar, and what it tells."""

    giver: Giver
    decoder: Counting
    sidecar: Served
    told: Told
    source: str

    async def pull(self, *, moves: int, gives: int | None = None) -> None:
        """One pull: what the decoder counts of it, and what the source does (the same if not said)."""
        self.decoder.next = moves
        self.giver.gave += moves if gives is None else gives
        answer = await self.sidecar.post(headers=[(SOURCE, self.source), ("authorization", "Bearer secret")])
        assert answer.status == 200


@asynccontextmanager
async def scene(giver: Giver, *flags: str) -> AsyncIterator[Scene]:
    told, decoder = Told(), Counting()
    async with (
        scripted(giver.script) as source,
        scripted(decoder.script) as engine,
        serving(engine.port, *(flags or FLAGS), watchers=[told]) as sidecar,
    ):
        await asyncio.sleep(0.1)  # the decoder's first look, at the start
        yield Scene(giver, decoder, sidecar, told, source.netloc)


async def test_a_source_confirms_what_moved_once_there_is_a_look_to_compare_with() -> None:
    async with scene(Giver(gave=999)) as play:
        await play.pull(moves=4096)
        assert await play.told.of(1) == [Says.UNKNOWN]  # what it gave before is not known
        await play.pull(moves=4096)
        assert await play.told.of(2) == [Says.UNKNOWN, Says.CONFIRMED]
        assert [pull.outcome for pull in play.told.pulls] == [Outcome.MOVED] * 2
        assert play.told.in_time == [None, Says.CONFIRMED]
    assert {(got.method, got.target) for got in play.giver.asked} == {("GET", "/metrics")}
    assert not any(got.all("authorization") or got.all(SOURCE) for got in play.giver.asked)


async def test_a_source_that_gave_less_than_moved_contradicts_and_only_when_it_has_had_its_time() -> None:
    async with scene(Giver()) as play:
        await play.pull(moves=4096, gives=0)
        assert await play.told.of(1) == [Says.CONTRADICTED]
        await play.pull(moves=4096, gives=4095)
        assert await play.told.of(2) == [Says.CONTRADICTED] * 2
        assert play.told.in_time[1] is None or play.told.pulls[1].source_says is Says.CONTRADICTED


async def test_a_count_that_rises_late_confirms_all_the_same() -> None:
    async with scene(Giver()) as play:
        await play.pull(moves=0)
        await play.told.of(1)
        await play.pull(moves=4096, gives=0)
        looks = len(play.giver.looks)
        async with asyncio.timeout(5):
            while len(play.giver.looks) == looks:
                await asyncio.sleep(0.002)
        play.giver.gave += 4096
        assert await play.told.of(2) == [Says.NOTHING, Says.CONFIRMED]


@pytest.mark.parametrize("giver", [Giver(gave=0), Giver(gave=0, stored=0)], ids=["counted apart", "vLLM's"])
async def test_nothing_left_a_source_whose_counters_never_rose(giver: Giver) -> None:
    async with scene(giver) as play:
        await play.pull(moves=0)
        assert await play.told.of(1) == [Says.NOTHING]
        assert play.told.pulls[0].outcome is Outcome.NOTHING


async def test_a_source_that_gave_others_while_our_pull_moved_nothing_says_so() -> None:
    async with scene(Giver()) as play:
        await play.pull(moves=0)
        await play.told.of(1)
        await play.pull(moves=0, gives=512)
        assert await play.told.of(2) == [Says.NOTHING, Says.GAVE]


async def test_vllms_own_stores_are_no_proof_that_something_left_it() -> None:
    async with scene(Giver(stored=0)) as play:
        await play.pull(moves=0)
        await play.told.of(1)
        play.giver.stored = 4096
        await play.pull(moves=0)
        assert await play.told.of(2) == [Says.NOTHING, Says.UNKNOWN]
        await play.pull(moves=4096)
        assert (await play.told.of(3))[2] is Says.CONFIRMED


@pytest.mark.parametrize("status", [404, 500])
async def test_a_source_without_metrics_leaves_it_unknown_and_is_left_alone(status: int) -> None:
    async with scene(Giver(status=status)) as play:
        for _ in range(4):
            await play.pull(moves=64)
        assert await play.told.of(4) == [Says.UNKNOWN] * 4
        for _ in range(4):
            await play.pull(moves=64)
        await play.told.of(8)
    assert len(play.giver.looks) == source_counters.MAX_FAILURES


async def test_a_source_that_does_not_answer_delays_neither_requests_nor_what_is_told_of_pulls() -> None:
    async with scene(Giver(takes_s=30.0)) as play:
        began_s = monotonic()
        await play.pull(moves=64)
        assert monotonic() - began_s < 1.0
        async with asyncio.timeout(1.5):
            while not play.told.pulls:
                await asyncio.sleep(0.01)
        assert play.told.in_time == [None]


async def test_a_source_is_looked_at_only_after_pulls_one_at_a_time_and_once_in_an_interval() -> None:
    flags = (*LIVE[:-1], "--pull-verification-source-interval=200ms", "--source-guard=off")
    async with scene(Giver(takes_s=0.02), *flags) as play:
        await play.sidecar.post()
        await asyncio.sleep(0.3)
        assert play.giver.looks == []
        for _ in range(40):
            await play.pull(moves=64)
            await asyncio.sleep(0.01)
        await play.told.of(40)
        seen = len(play.giver.looks)
        await asyncio.sleep(0.3)
        assert len(play.giver.looks) == seen  # nothing to ask
    first_s, *_, last_s = play.giver.looks
    assert 2 <= seen <= 2 + (last_s - first_s) / 0.2  # the last may come early, where the first came late
    assert play.giver.most_at_once == 1


@pytest.mark.parametrize("off", ["--pull-verification-sources=off", "--pull-verification=off"])
async def test_where_it_is_off_no_source_is_asked(off: str) -> None:
    interval = "--pull-verification-interval=50ms"
    async with scene(Giver(), "--kv-connector=offloading", "--source-guard=off", interval, off) as play:
        await play.pull(moves=64)
        await asyncio.sleep(0.4)
        assert (play.giver.looks, play.told.says) == ([], [])


async def test_a_source_that_ssrf_protection_or_the_guard_keeps_out_is_not_asked() -> None:
    async with scene(Giver(), *FLAGS, "--allowed-endpoints=127.0.0.9:8000") as play:
        await play.pull(moves=0)
        await asyncio.sleep(0.2)
        assert (play.told.says, play.giver.looks) == ([], [])
    async with scene(Giver(), *LIVE, f"--p2p-connector-port={closed_port()}") as play:
        await play.pull(moves=0)
        await asyncio.sleep(0.2)
        assert (play.told.says, play.giver.looks) == ([], [])


async def test_a_prefillers_pull_is_asked_after_at_its_source_too() -> None:
    counts = Counting()

    async def prefill(got: Got, answer: Answer) -> None:
        await counts.script(got, answer)

    told, giver = Told(), Giver()
    async with (
        scripted(giver.script) as source,
        scripted(prefill) as prefiller,
        scripted(complete) as decoder,
        serving(decoder.port, *FLAGS, watchers=[told]) as sidecar,
    ):
        await sidecar.post(headers=[(PREFILLER, prefiller.netloc), (SOURCE, source.netloc)])
        assert await told.of(1) == [Says.NOTHING]
        assert [str(pull.role) for pull in told.pulls] == ["prefill"]


async def test_an_engine_that_was_started_again_says_nothing_of_the_pull_before() -> None:
    async with scene(Giver(gave=9999)) as play:
        await play.pull(moves=64)
        await play.told.of(1)
        play.giver.gave = 0
        await play.pull(moves=64, gives=64)
        assert await play.told.of(2) == [Says.UNKNOWN, Says.UNKNOWN]


def peer(number: int) -> Peer:
    return Peer(Endpoint("10.0.0.1", 8000 + number), 7777)


def pulling(source: Peer, began_s: float = 0.0) -> LegRecord:
    """A leg that pulls, as the verifier leaves it to those who are entered after."""
    record = leg(chat(Route(DECODER, source=source)), Role.DECODE, began_s)
    record.leg = replace(record.leg, pull=Pull(source, "k"))
    record.pull = pulled(Outcome.MOVED, source=source.p2p, moved_bytes=64)
    return record


def over(sources: SourceCounters, record: LegRecord) -> None:
    """The leg runs, and it is known what it moved."""
    with sources.leg(record):
        record.first_byte_s = record.ended_s = monotonic()
    assert record.pull is not None
    sources.pull(record.pull)


@asynccontextmanager
async def running(sources: SourceCounters) -> AsyncIterator[None]:
    task = asyncio.ensure_future(sources.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def counting(role: Role, source: Endpoint) -> bytes:
    return b"lab:p2p_served_bytes_total 64\n"


async def test_pulls_beyond_what_is_kept_and_sources_beyond_the_table_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_counters, "MAX_SOURCES", 2)
    monkeypatch.setattr(source_counters, "MAX_CLAIMS", 3)
    told = Told()
    sources = SourceCounters(counting, lambda peer: True, Observers([told]), interval_s=0.02)
    for number in (0, 1, 2, 0, 0):
        over(sources, pulling(peer(number)))
    assert told.says == [Says.UNKNOWN, Says.UNKNOWN]  # the third source, and the fourth of the others
    assert len(told.pulls) == 5
    async with running(sources):
        await told.of(5)
    over(sources, pulling(peer(2)))  # in the place of one that has nothing to say
    assert len(told.says) == 5


async def test_few_sources_are_looked_at_at_once() -> None:
    told, now, most = Told(), 0, 0

    async def slow(role: Role, source: Endpoint) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.03)
        now -= 1
        return b"lab:p2p_served_bytes_total 0\n"

    sources = SourceCounters(slow, lambda peer: True, Observers([told]), interval_s=0.02)
    for number in range(12):
        over(sources, pulling(peer(number)))
    async with running(sources):
        await told.of(12)
    assert most == source_counters.MAX_LOOKS
    assert set(told.says) == {Says.CONTRADICTED}


async def test_a_source_that_may_no_longer_be_contacted_is_not() -> None:
    told, looked = Told(), list[Endpoint]()

    async def look(role: Role, source: Endpoint) -> bytes:
        looked.append(source)
        return b""

    allowed = peer(1)
    sources = SourceCounters(look, lambda peer: peer == allowed, Observers([told]), interval_s=0.02)
    for number in (0, 1):
        over(sources, pulling(peer(number)))
    async with running(sources):
        assert await told.of(2) == [Says.UNKNOWN] * 2
    assert set(looked) == {allowed.endpoint}


async def test_a_pull_that_was_given_up_is_unknown_at_once() -> None:
    told = Told()
    sources = SourceCounters(counting, lambda peer: True, Observers([told]), interval_s=0.02)
    record = pulling(peer(0))
    assert record.pull is not None
    record.pull.outcome = Outcome.RESCUED
    over(sources, record)
    assert (told.says, told.in_time) == ([Says.UNKNOWN], [Says.UNKNOWN])


async def test_pulls_of_one_window_are_summed_up_before_they_are_compared() -> None:
    told, gave = Told(), 0

    async def look(role: Role, source: Endpoint) -> bytes:
        return b"lab:p2p_served_bytes_total %d\n" % gave

    sources = SourceCounters(look, lambda peer: True, Observers([told]), interval_s=0.02)
    over(sources, pulling(peer(0)))
    async with running(sources):
        assert await told.of(1) == [Says.CONTRADICTED]
        gave = 100
        for _ in range(2):
            over(sources, pulling(peer(0)))
        assert (await told.of(3))[1:] == [Says.CONTRADICTED] * 2  # either of them would fit
