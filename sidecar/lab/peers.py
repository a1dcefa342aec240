"""The pulling side of an engine's P2P tier: sessions with other engines, and what each kind of pull costs and
yields.

Rule: a pull never fails a request; what could not be pulled is computed. It can cost time, and under vLLM
0.32's fault all of it: after one contact with an unreachable peer, every later pull waits until its client
goes away.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sidecar.lab.clock import Clock, for_ever
from sidecar.lab.config import EngineConfig
from sidecar.lab.kvparams import Peer
from sidecar.lab.latency import PROFILES
from sidecar.lab.metrics import Metrics
from sidecar.lab.p2p import FETCH_WAIT_S, fingerprint
from sidecar.lab.series import P2P_TIER
from sidecar.lab.stages import FetchStage
from sidecar.lab.wire import Head, Session, WireError

logger = logging.getLogger(__name__)

PEER_HAS_NOTHING_S = 0.1
"""Price of a pull that finds nothing, or whose peer refuses the handshake (seen on vLLM 0.32)."""

CONNECTION_REFUSED_S = 0.06
"""Price of a pull from a port where nothing listens (seen: 0.05 to 0.07 s)."""

PREFILLER_REFUSED_S = 0.3
"""Price of a fetch from a prefiller whose port refuses (seen on vLLM 0.32 after its prefiller was killed)."""

HANDSHAKE_TIMEOUT_S = 30.0
"""A peer that takes the connection, or swallows it, and never answers (VLLM_P2P_HANDSHAKE_TIMEOUT_S)."""

_QUERIES = "vllm:kv_offload_tiering_chunk_queries_total"
_HITS = "vllm:kv_offload_tiering_chunk_hits_total"
_FAILURES = "vllm:kv_offload_tiering_promotion_job_failures_total"


class PeerUnreachable(Exception):
    """Nothing listens, or no handshake came in time (`timed_out`)."""

    def __init__(self, *, timed_out: bool) -> None:
        super().__init__()
        self.timed_out = timed_out


class PeerRefused(Exception):
    """The peer answered that it is not comparable with this engine."""


class Peers:
    """Sessions of one engine with its peers, kept open between pulls."""

    def __init__(self, config: EngineConfig, clock: Clock, metrics: Metrics) -> None:
        self._fingerprint, self._clock, self._metrics = fingerprint(config), clock, metrics
        self._chunk_tokens = config.chunk_tokens
        self._chunk_bytes = config.chunk_tokens * config.kv_bytes_per_token
        self._profile = PROFILES[config.profile]
        self._hang_after_dead_peer = config.p2p_hang_after_dead_peer
        self._idle: dict[tuple[str, int], list[Session]] = {}
        self.wedged = False

    async def pull(self, source: Peer, hashes: Sequence[bytes], stage: FetchStage) -> list[bytes]:
        """Leading chunks that the peer has of these hashes (`remote_kv_source`)."""
        stage.move("waiting_to_start")
        await self._hang_if_wedged()
        began_s = self._clock.now_s
        try:
            async with self._session(source) as session:
                answer, _ = await session.ask({"op": "lookup"}, b"".join(hashes))
                hits = _count(answer.get("hits"), len(hashes))
                self._count_lookup(hits, len(hashes))
                if hits:
                    stage.move("in_progress")
                    return await self._read(session, hashes[:hits], began_s)
            await self._clock.sleep(PEER_HAS_NOTHING_S)
        except PeerUnreachable as error:
            self._contacted_dead_peer(source)
            if not error.timed_out:
                await self._clock.sleep(CONNECTION_REFUSED_S)
        except PeerRefused as error:
            logger.warning("P2P: %s:%d refuses this engine: %s", source.host, source.port, error)
            await self._clock.sleep(PEER_HAS_NOTHING_S)
        return []

    async def fetch(self, prefiller: Peer, hashes: Sequence[bytes], stage: FetchStage) -> list[bytes]:
        """Chunks that the peer prefilled for this engine (`remote_prefiller`); waits for them up to 30 s."""
        stage.move("waiting_to_start")
        await self._hang_if_wedged()
        stage.move("in_progress")
        self._count_lookup(
            len(hashes), len(hashes)
        )  # Taken for granted: vLLM claims them all without asking.
        chunks = self._split(await self._fetch_bytes(prefiller, hashes), len(hashes))
        await self._spend_transfer(len(chunks), self._clock.now_s)
        return chunks

    def drop(self) -> None:
        """Closes every session."""
        for session in (session for sessions in self._idle.values() for session in sessions):
            session.drop()
        self._idle.clear()

    async def _read(self, session: Session, hashes: Sequence[bytes], began_s: float) -> list[bytes]:
        try:
            _, kv = await session.ask({"op": "read"}, b"".join(hashes))
        except WireError:
            self._metrics.add(_FAILURES, 1, tier=P2P_TIER)
            raise
        chunks = self._split(kv, len(hashes))
        await self._spend_transfer(len(chunks), began_s)
        return chunks

    async def _fetch_bytes(self, prefiller: Peer, hashes: Sequence[bytes]) -> bytes:
        request: Head = {"op": "fetch", "kv_request_id": prefiller.kv_request_id}
        try:
            async with self._session(prefiller) as session, self._clock.timeout(FETCH_WAIT_S):
                _, kv = await session.ask(request, b"".join(hashes))
                return kv
        except PeerUnreachable as error:
            self._contacted_dead_peer(prefiller)
            if not error.timed_out:
                await self._clock.sleep(PREFILLER_REFUSED_S)
        except PeerRefused:
            await self._clock.sleep(FETCH_WAIT_S)
        except TimeoutError:
            logger.warning("P2P: %s was never prefilled by its peer", prefiller.kv_request_id)
        return b""

    @asynccontextmanager
    async def _session(self, peer: Peer) -> AsyncIterator[Session]:
        """A session, idle again afterwards unless something broke; raises PeerUnreachable, PeerRefused."""
        idle = self._idle.setdefault((peer.host, peer.port), [])
        session = None
        while session is None and idle:
            candidate = idle.pop()
            if candidate.usable:
                session = candidate
            else:
                candidate.drop()
        if session is None:
            session = await self._connect(peer)
        try:
            yield session
        except WireError as error:
            raise PeerUnreachable(timed_out=False) from error
        except BaseException:
            session.drop()
            raise
        idle.append(session)

    async def _connect(self, peer: Peer) -> Session:
        session = None
        try:
            async with self._clock.timeout(HANDSHAKE_TIMEOUT_S):
                session = await Session.connect(peer.host, peer.port)
                answer, _ = await session.ask(self._fingerprint)
        except OSError as error:  # TimeoutError and WireError are kinds of it.
            raise PeerUnreachable(timed_out=isinstance(error, TimeoutError)) from error
        if "refused" in answer:
            session.drop()
            raise PeerRefused(f"differs in {answer['refused']}")
        return session

    async def _hang_if_wedged(self) -> None:
        if self.wedged:
            await for_ever()

    def _contacted_dead_peer(self, peer: Peer) -> None:
        logger.warning("P2P: %s:%d does not answer", peer.host, peer.port)
        self.wedged = self._hang_after_dead_peer

    def _split(self, kv: bytes, expected: int) -> list[bytes]:
        chunks = [kv[i : i + self._chunk_bytes] for i in range(0, len(kv), self._chunk_bytes)]
        if len(chunks) < expected:
            self._metrics.add(_FAILURES, 1, tier=P2P_TIER)
        return chunks

    async def _spend_transfer(self, chunks: int, began_s: float) -> None:
        stage_ms = self._profile.transfer_stage_ms(chunks * self._chunk_tokens)
        await self._clock.sleep(stage_ms / 1000, since_s=began_s)

    def _count_lookup(self, hits: int, asked: int) -> None:
        self._metrics.add(_QUERIES, hits + (1 if hits < asked else 0), tier=P2P_TIER)
        if hits:
            self._metrics.add(_HITS, hits, tier=P2P_TIER)


def _count(value: object, most: int) -> int:
    return min(value, most) if isinstance(value, int) and value > 0 else 0
