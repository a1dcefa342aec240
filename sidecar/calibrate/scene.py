"""Looks at the pair before anything is measured: what the engines are, and how the consumer is directed.

Rule: acts; refuses pairs that cannot be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from sidecar.calibrate.aim import Aim, aimed
from sidecar.calibrate.options import Options
from sidecar.calibrate.outcomes import Pair
from sidecar.endpoint import Endpoint
from sidecar.engine_counters import Counters
from sidecar.remote import Facts, NoAnswer, Place, connected
from sidecar.remote.client import CONNECT_S

DEFAULT_BLOCK_TOKENS = 16
"""Of an engine that does not tell (vLLM's default)."""


class BadScene(ValueError):
    """The pair cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The pair. counters: of the source. limit_tokens: of the smaller of the two.

    doubt: what could not be found out from here, for whoever is asked whether to start.
    """

    pair: Pair
    aim: Aim
    model: str
    block_tokens: int
    limit_tokens: int | None
    counters: Counters
    doubt: str | None


async def looked_at(options: Options) -> Scene:
    """The pair of rank 0. Raises NoAnswer, Uncounted, BadScene, BadAim."""
    source, counters = await _look(options.source, options)
    consumer, _ = await _look(options.consumer, options)
    for rank in range(1, options.dp_ranks):
        for place in (options.source, options.consumer):
            await _look(place.of_rank(rank), options)
    model = options.model or source.model or ""
    if options.model is None and consumer.model != model:
        raise BadScene(f"the source serves {model!r}, the consumer {consumer.model!r}: no pair")
    through = consumer.through_sidecar if options.via == "auto" else options.via == "sidecar"
    aim = aimed(
        options.source, through_sidecar=through, p2p=options.source_p2p, endpoint=options.source_endpoint
    )
    doubt = None if aim.by_header else await _all_tried(aim, options)
    limits = [facts.max_model_tokens for facts in (source, consumer) if facts.max_model_tokens]
    blocks = [facts.block_tokens for facts in (source, consumer) if facts.block_tokens]
    return Scene(
        pair=Pair(source, consumer, aim.text),
        aim=aim,
        model=model,
        block_tokens=max(blocks, default=DEFAULT_BLOCK_TOKENS),
        limit_tokens=min(limits, default=None),
        counters=counters,
        doubt=doubt,
    )


async def _all_tried(aim: Aim, options: Options) -> str | None:
    """The doubt about the first rank whose P2P endpoint cannot be tried from here. Raises NoAnswer."""
    for rank in range(options.dp_ranks):
        p2p = aim.of_rank(rank)
        why = await _tried(p2p)
        if why and options.source_p2p is None:
            raise NoAnswer(f"{p2p.netloc}: {why}; --source-p2p names the source's P2P tier")
        if why:
            return (
                f"--source-p2p: {p2p.netloc} could not be tried from here ({why}): if the consumer cannot"
                " reach it either, one pull can make all its later ones hang (vLLM 0.32)"
            )
    return None


async def _tried(p2p: Endpoint) -> str | None:
    """Connect to a P2P endpoint and close at once, which engines do not mind; why that cannot be done.

    One contact with a dead peer can hang all later pulls of a vLLM 0.32 engine: none is sent there (a sidecar
    has its source guard). Whoever names the endpoint may name one that only the consumer can reach. Raises
    NoAnswer where nothing listens.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(p2p.host, p2p.port)
    except ConnectionRefusedError:
        raise NoAnswer(f"{p2p.netloc}: no P2P tier listens there; --source-p2p names where it does") from None
    except TimeoutError:
        return f"no connection within {CONNECT_S:g} s"
    except socket.gaierror as error:
        return f"the name does not resolve: {error.strerror}"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


async def _look(place: Place, options: Options) -> tuple[Facts, Counters]:
    async with connected(place, options.trust, timeout_s=options.timeout_s) as remote:
        facts = await remote.facts()
        if options.model is None and facts.model is None:
            raise NoAnswer(f"{place.url}: {facts.unlisted}; --model says which to ask for")
        return facts, await remote.counters()
