"""One request after the other, each with a fault or none, and with a client that stays, leaves or is slow.

Rule: the seed decides what is asked; every request ends in the account under what came of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.commands import Command
from tests.engines import Answer, Got, Script, ScriptedEngine
from tests.faults.broken import FAULTS, Fault, Seen
from tests.faults.judging import is_honest, meant
from tests.faults.ways import BOOTSTRAP, DECODE, HEADERS, PREFILL, WAYS, Way, answering, never
from tests.serving import SOURCE, Said, post, read_answer

# Of the requests; the others find every engine well and stay.
FAULTY = 0.4
LEAVING = 0.1
SLOW = 0.05
# Nobody listens on the P2P port of that source: it is guarded against, and the answer is the same.
PULLING = 0.2
SOURCE_NAMED = (SOURCE, "127.0.0.9:8000")
# A healthy answer takes milliseconds; whoever meets an engine that hangs leaves after this long at most.
LONGEST_STAY_S = 0.5
# The bound of every request, on a machine with other work.
BOUND_S = 30.0
REQUEST_ID = "x-request-id"


@dataclass(slots=True)
class Stand:
    """One way with its running sidecar and engines. ails: what is wrong with whom, by request.

    bootstrap: what is wrong with the bootstrap server now, which is not asked for one request alone.
    """

    name: str
    sidecar: Command
    engines: dict[str, ScriptedEngine]
    ails: dict[str, tuple[str, Fault]] = field(default_factory=dict)
    bootstrap: Fault | None = None

    @property
    def way(self) -> Way:
        """The row of the table."""
        return WAYS[self.name]

    def scripts(self) -> None:
        """Have the engines fail as the requests' own account says."""
        for role, engine in self.engines.items():
            engine.script = self._ailing(role)

    def _ailing(self, role: str) -> Script:
        async def script(got: Got, answer: Answer) -> None:
            tag = (got.all(REQUEST_ID) or [""])[0].partition("-enc-")[0]
            who, fault = self.ails.get(tag, ("", None))
            if role == BOOTSTRAP and self.bootstrap is not None:
                who, fault = role, self.bootstrap
            if fault is not None and self._waits_for_blocks(role, who, fault):
                await never(got, answer)
            await (fault.script(role) if fault is not None and who == role else answering(role))(got, answer)

        return script

    def _waits_for_blocks(self, role: str, who: str, fault: Fault) -> bool:
        """A decoder beside a prefiller that hangs hangs too; a quick one's prefiller would be let go on."""
        return self.way.beside and (role, who, fault.seen) == (DECODE, PREFILL, Seen.SILENT)


@dataclass(slots=True)
class Account:
    """What came of every request. wrong: what should not have happened, in words."""

    asked: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that is about to be sent."""

    stand: Stand
    tag: str
    role: str
    fault: Fault | None
    what: str
    stream: bool
    stay_s: float | None
    slow: bool
    pulls: bool

    @property
    def wire(self) -> bytes:
        """Its bytes."""
        engines, way = self.stand.engines, self.stand.way
        named = [(HEADERS[role], engines[role].netloc) for role in way.roles if role in HEADERS]
        named += [SOURCE_NAMED] if self.pulls else []
        return post(body=way.body(stream=self.stream), headers=[*named, (REQUEST_ID, self.tag)])


def next_request(stands: list[Stand], number: int, rng: random.Random) -> Asked:
    """What is asked next."""
    stand = rng.choice(stands)
    role = rng.choice((DECODE, *stand.way.roles))
    what = rng.choice(list(FAULTS)) if rng.random() < FAULTY else "none"
    fault = FAULTS.get(what)
    leaves = rng.random() < LEAVING or (fault is not None and fault.seen is Seen.SILENT)
    return Asked(
        stand,
        f"soak-{number}",
        role,
        fault,
        what,
        stream=rng.random() < 0.5,
        stay_s=rng.uniform(0, LONGEST_STAY_S) if leaves else None,
        slow=rng.random() < SLOW,
        pulls=rng.random() < PULLING,
    )


async def run_one(asked: Asked, account: Account) -> None:
    """Send it, see what comes, and write that down."""
    stand = asked.stand
    account.asked[stand.name] += 1
    account.faults[
        asked.what if asked.fault is None else f"{asked.role}: {asked.fault.seen.name.lower()}"
    ] += 1
    if asked.fault is not None and asked.role == BOOTSTRAP:
        stand.bootstrap = asked.fault
    elif asked.fault is not None:
        stand.ails[asked.tag] = (asked.role, asked.fault)
    try:
        async with asyncio.timeout(BOUND_S):
            said = await _said(asked)
    except (TimeoutError, OSError, ValueError) as error:
        account.wrong.append(f"{asked.what} at {asked.role} of {stand.name}: {error!r}")
        return
    finally:
        stand.ails.pop(asked.tag, None)
        stand.bootstrap = None if asked.role == BOOTSTRAP else stand.bootstrap
    if said is None:
        account.ended["client left"] += 1
        return
    account.ended[_kind(said)] += 1
    if not _is_expected(said, asked):
        outcome = (said.status, said.whole, said.body[:120])
        account.wrong.append(f"{asked.what} at {asked.role} of {stand.name}: {outcome}")


async def _said(asked: Asked) -> Said | None:
    """The answer; None when the client left first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.stand.sidecar.port, limit=1 << 26)
    try:
        writer.write(asked.wire)
        if asked.slow:
            await asyncio.sleep(LONGEST_STAY_S)
        async with asyncio.timeout(asked.stay_s):
            return await read_answer(reader)
    except TimeoutError:
        if asked.stay_s is None:
            raise
        return None
    finally:
        writer.transport.abort()


def _kind(said: Said) -> str:
    """How an answer ended."""
    if not said.whole:
        return "visibly cut"
    if said.all("x-sidecar-error"):
        return "error of ours"
    return "answer" if said.status == 200 else "engine's refusal"


def _is_expected(said: Said, asked: Asked) -> bool:
    """Whether this fault may end so. Where legs run side by side, the decoder may have answered before."""
    way = asked.stand.way
    bootstrap_fails = BOOTSTRAP in way.roles and is_honest(said, Seen.DEAD, begun=False)
    if asked.fault is None or bootstrap_fails:
        return bootstrap_fails or is_honest(said, Seen.RIGHT, begun=False)
    seen = meant(way, asked.role, asked.fault)
    beside = asked.role == PREFILL and way.beside
    first = (beside or asked.role == BOOTSTRAP) and is_honest(said, Seen.RIGHT, begun=False)
    return first or is_honest(said, seen, begun=asked.role == DECODE or beside)
