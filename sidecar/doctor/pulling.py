"""Lets peers pull from one another, one pull at a time, and measures each.

Rule: acts; bounded. A source's port is tried right before an engine is told of it, and a consumer whose pull
hung is told of no other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sidecar.doctor.asking import risen_since, standing
from sidecar.doctor.counted import Counted, counted
from sidecar.doctor.fronts import directed_port
from sidecar.doctor.operators import metrics_of
from sidecar.doctor.order import Fresh, Order
from sidecar.doctor.ports import port
from sidecar.doctor.pulls import WHOLE, Pair, Pull, Verdict
from sidecar.doctor.reading import sidecar_told
from sidecar.doctor.said import directive, more, said
from sidecar.doctor.told import Told
from sidecar.endpoint import Endpoint
from sidecar.headers import DATA_PARALLEL_RANK
from sidecar.remote.client import Remote
from sidecar.remote.errors import RemoteError, TooLate
from sidecar.remote.prompts import NO_PULL as UNDIRECTED
from sidecar.remote.prompts import Answered, Directive


@dataclass(frozen=True, slots=True)
class Party:
    """One peer: what it told, and the way to it. as_text: it takes no token ids."""

    told: Told
    remote: Remote
    as_text: bool

    @property
    def name(self) -> str:
        """Of the peer."""
        return self.told.name


@dataclass(slots=True)
class Pulling:
    """The pulls of one round. tokens: of a prompt. tell: what is being done, for whoever watches."""

    order: Order
    parties: Mapping[str, Party]
    tokens: int
    tell: Callable[[str], None]
    _seeded: dict[str, tuple[Fresh, ...]] = field(default_factory=dict)
    _hung: set[str] = field(default_factory=set)

    async def pair(self, source_name: str, consumer_name: str) -> Pair:
        """What becomes of pulls by one peer from another."""
        source, consumer = self.parties[source_name], self.parties[consumer_name]
        self.tell(f"{consumer_name} pulls from {source_name}")
        pair = Pair(source_name, consumer_name)
        try:
            in_the_way = await self.in_the_way(source, consumer)
            if in_the_way is None and source_name not in self._seeded:
                self._seeded[source_name] = await self._seed(source)
                in_the_way = await self.in_the_way(source, consumer)  # as it is now
        except RemoteError as error:
            return replace(
                pair, verdict=Verdict.UNREACHABLE, why=f"{source_name} computed no prompt: {error}"
            )
        if in_the_way:
            return replace(pair, verdict=in_the_way[0], why=in_the_way[1])
        prompts = self._seeded[source_name]
        try:
            pair = replace(pair, first=await self.pull(source, consumer, prompts[0]))
            if pair.first and pair.first.came_tokens and not await self.in_the_way(source, consumer):
                return replace(pair, again=await self.pull(source, consumer, prompts[1]))
        except RemoteError as error:
            return replace(pair, verdict=Verdict.UNREACHABLE, why=f"one of the two is gone: {error}")
        return pair

    async def in_the_way(self, source: Party, consumer: Party) -> tuple[Verdict, str] | None:
        """Why the consumer must not be told of the source; None when it may."""
        for party in (source, consumer):
            if party.told.failure:
                return Verdict.UNREACHABLE, f"{party.name} gives no answer"
            if party.told.alone is None:
                return Verdict.UNTRIED, f"{party.name} gives no completion"
        if consumer.name in self._hung:
            return Verdict.UNTRIED, f"a pull of {consumer.name} hangs"
        if source.told.peer.p2p == consumer.told.peer.p2p:
            return Verdict.UNTRIED, "both have one P2P address"
        return await self._shut_port(source, consumer)

    async def _shut_port(self, source: Party, consumer: Party) -> tuple[Verdict, str] | None:
        """Which P2P port of the source accepts nothing, of those that the consumer would be told of."""
        ours, first = source.told.peer.p2p, source.told.ports[:1]
        if first and not first[0].open:
            return _shut(
                ours, source, consumer
            )  # as it was found: an engine that has just started comes next
        for number in {ours.port, directed_port(consumer.told, source.told) or ours.port}:
            found = await port(ours.with_port(number))
            if not found.open:
                return _shut(found.endpoint, source, consumer, " by now" if number == ours.port else "")
        return None

    async def _seed(self, source: Party) -> tuple[Fresh, ...]:
        """Two prompts that the source has computed and offloaded. Raises RemoteError."""
        prompts = Fresh.of(self.tokens), Fresh.of(self.tokens)
        for prompt in prompts:
            await self.keep(source, prompt)
        return prompts

    async def keep(self, party: Party, prompt: Fresh) -> Answered:
        """Have a peer compute a prompt and offload it. Raises RemoteError."""
        before = counted(await party.remote.metrics())
        answered = await self.complete(party, prompt, UNDIRECTED)
        # All of it, or a pull finds a part only and takes it for what the source kept.
        stored = await risen_since(
            before, party.remote, party.told, standing("stored_bytes", self._kv(party))
        )
        if before.written_bytes is not None:
            # It follows a step later, and would pass for given to the pull that comes next.
            written = standing("written_bytes", stored.stored_bytes or 0.0)
            await risen_since(before, party.remote, party.told, written)
        return answered

    def _kv(self, party: Party) -> float:
        """The least that a prompt's blocks take, as that peer's tier counted before; 0 where it did not."""
        block = party.told.facts.block_tokens or 1
        return WHOLE * (party.told.kv_token_bytes or 0.0) * ((self.tokens - 1) // block * block)

    async def pull(self, source: Party, consumer: Party, prompt: Fresh) -> Pull:
        """One pull of a prompt that the source has."""
        asked = directive(source.told.peer, consumer.told, str(uuid.uuid4()))
        return await self.measured(source, consumer, prompt, asked)

    async def measured(self, source: Party, consumer: Party, prompt: Fresh, directive: Directive) -> Pull:
        """One request at the consumer, and what both engines counted of it.

        Raises RemoteError where either tells no counters before it.
        """
        given_before = counted(await source.remote.metrics())
        before = counted(await consumer.remote.metrics())
        skips = await self._skips(consumer)
        try:
            answered = await self.complete(consumer, prompt, directive)
        except TooLate:
            self._hung.add(consumer.name)
            answers = await self._answers(consumer)
            return Pull(self.tokens - 1, hung_s=self.order.timeout_s, busy=not answers)
        except RemoteError as error:
            return Pull(self.tokens - 1, failure=str(error))
        pull = said(answered, consumer.told, self.tokens, as_text=self._as_text)
        taken, given = await asyncio.gather(
            _risen(before, consumer, _taken(self._kv(consumer))),
            _risen(given_before, source, _given),
        )
        return replace(
            pull,
            faults=taken.of("pulled_bytes", "pulled_tokens"),
            source_faults=given.of("served_bytes", "written_bytes", "stored_bytes", "looked_up"),
            moved_bytes=taken.pulled_bytes,
            moved_tokens=taken.pulled_tokens,
            given_bytes=given.given_bytes,
            looked_up=None if given.looked_up is None else given.looked_up > 0,
            skipped=pull.skipped
            or (None if taken.pulled_bytes else more(skips, await self._skips(consumer))),
        )

    async def _answers(self, party: Party) -> bool:
        """Whether a prompt without a directive is answered in the time in which a pull was not."""
        try:
            await self.complete(party, Fresh.of(self.tokens), UNDIRECTED)
        except RemoteError:
            return False
        return True

    async def complete(self, party: Party, prompt: Fresh, directive: Directive) -> Answered:
        """One request with an answer of one token. Raises RemoteError."""
        told = party.told
        if told.families.ranks > 1:  # a seed and its pull have to meet at one rank's port
            rank = {DATA_PARALLEL_RANK.decode(): "0"}
            directive = Directive(directive.fields, {**directive.headers, **rank})
        form = prompt.form(as_text=self._as_text)
        return await party.remote.complete(told.facts.model or "", form, directive)

    @property
    def _as_text(self) -> bool:
        """All peers are asked in words where one takes nothing else."""
        return any(one.as_text for one in self.parties.values())

    async def _skips(self, consumer: Party) -> Mapping[str, float]:
        """Pulls that its sidecar has left out, by reason; none where it does not tell."""
        place = consumer.told.peer.operators
        if consumer.told.sidecar is None or place is None:
            return {}
        try:
            return sidecar_told(await metrics_of(place, self.order.trust, self.order.timeout_s), None).skipped
        except RemoteError:
            return {}


def _shut(end: Endpoint, source: Party, consumer: Party, now: str = "") -> tuple[Verdict, str]:
    return Verdict.UNREACHABLE, (
        f"{source.name}'s P2P port {end.netloc} is shut{now}, so {consumer.name} was not told of it: one "
        "contact with a dead port makes every later pull of vLLM 0.32 hang"
    )


async def _risen(before: Counted, party: Party, of: Callable[[Counted], object]) -> Counted:
    """How far a peer's counters have risen; nothing is known of one that answers no more."""
    try:
        return await risen_since(before, party.remote, party.told, of)
    except RemoteError:
        return Counted()


def _taken(least_bytes: float) -> Callable[[Counted], object]:
    """Whether both stand: an engine need not count tokens with the same step as bytes."""
    stands = standing("pulled_bytes", least_bytes)
    return lambda now: stands(now) and (stands(now), now.pulled_tokens)


def _given(now: Counted) -> float | None:
    return (now.given_bytes or 0.0) + (now.looked_up or 0.0)
