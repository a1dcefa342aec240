"""`make soak`: runs the traffic for as long as it is told, and says what came of it.

Rule: exits with 1 when a request is unaccounted for, ended wrongly, left a leg open, or when something grows.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from tests.faults.ways import WAYS
from tests.fuzz.__main__ import seconds
from tests.soak.standing import GROWTH_BYTES, Holding, forget_answered, holding, quiet, standing
from tests.soak.traffic import Account, Stand, next_request, run_one

# Clients at the same time: enough that exchanges of every kind overlap, on a machine of two cores.
CLIENTS = 16
# Of the whole time: by then every kind of request has been there, and memory has what it needs.
WARM_UP = 0.3
MIB = 1024 * 1024


async def clients(stands: list[Stand], account: Account, until_s: float, rng: random.Random) -> int:
    """Ask until then; how many legs the engines have had."""
    legs = 0

    async def client() -> None:
        nonlocal legs
        while monotonic() < until_s:
            number = account.asked.total() + 1
            await run_one(next_request(stands, number, rng), account)
            if number % 1000 == 0:
                legs += forget_answered(stands)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return legs + forget_answered(stands)


def faults_of(stands: Sequence[Stand], account: Account) -> list[str]:
    """What the sidecars' own logs say that should not be so."""
    wrong = []
    for stand in stands:
        log = stand.sidecar.log
        lines = log.count('"message":"exchange"')
        if lines != account.asked[stand.name]:
            wrong.append(f"{stand.name}: {account.asked[stand.name]} requests, {lines} log lines")
        if '"level":"error"' in log or "Traceback" in log:
            at = log.find('"level":"error"')
            wrong.append(f"{stand.name}: its log has an error: {log[max(0, at - 100) : at + 600]}")
    return wrong


def grown(stand: Stand, warm: Holding, end: Holding, growth_bytes: int) -> list[str]:
    """What one sidecar holds more than when it was warm."""
    wrong = []
    if end.files > warm.files:
        wrong.append(f"{stand.name}: {end.files} open files, {warm.files} when warm")
    if end.rss_bytes > warm.rss_bytes + growth_bytes:
        wrong.append(f"{stand.name}: {end.rss_bytes / MIB:.0f} MiB, {warm.rss_bytes / MIB:.0f} when warm")
    return wrong


async def soak(
    for_s: float, seed: int, names: Sequence[str] = tuple(WAYS), growth_bytes: int = GROWTH_BYTES
) -> list[str]:
    """Run it; what is wrong, in words. growth_bytes: what memory may grow by after the warm-up."""
    account, rng = Account(), random.Random(seed)
    began_s = monotonic()
    with tempfile.TemporaryDirectory() as directory:
        async with standing(names, Path(directory)) as stands:
            started_s = monotonic()
            legs = await clients(stands, account, started_s + for_s * WARM_UP, rng)
            open_ones = await quiet(stands)
            warm = [holding(stand) for stand in stands]
            legs += await clients(stands, account, monotonic() + for_s * (1 - WARM_UP), rng)
            open_ones += await quiet(stands)
            end = [holding(stand) for stand in stands]
            wrong = [*account.wrong, *open_ones, *faults_of(stands, account)]
            for stand, before, after in zip(stands, warm, end, strict=True):
                wrong += grown(stand, before, after, growth_bytes)
                _say_holding(stand, before, after)
    lost = account.asked.total() - account.ended.total() - len(account.wrong)
    if lost > 0:
        wrong.append(f"{lost} requests are not accounted for")
    _say(account, legs, monotonic() - began_s)
    return wrong


def _say_holding(stand: Stand, warm: Holding, end: Holding) -> None:
    memory = f"{warm.rss_bytes / MIB:6.1f} to {end.rss_bytes / MIB:6.1f} MiB"
    print(f"  {stand.name:22} {memory}, {warm.files} to {end.files} open files")


def _say(account: Account, legs: int, took_s: float) -> None:
    print(f"{account.asked.total()} requests, {legs} legs, {took_s:.0f} s")
    for title, counts in (("by way", account.asked), ("ended as", account.ended), ("fault", account.faults)):
        print(f"  {title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


def main(args: list[str]) -> int:
    """`TIME [SEED]`."""
    seed = int(args[1]) if len(args) > 1 else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    wrong = asyncio.run(soak(seconds(args[0]), seed))
    for line in wrong[:50]:
        print(f"WRONG: {line}")
    print(f"{len(wrong)} faults")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
