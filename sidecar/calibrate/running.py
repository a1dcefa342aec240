"""Runs a calibration from its plan to its report, through Ctrl-C too.

Rule: acts; the measurement is a task that a signal cancels, so that what was measured until then is shown.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from sidecar import streams
from sidecar.calibrate import machine, picture, text
from sidecar.calibrate.background import loaded
from sidecar.calibrate.flags import PROG
from sidecar.calibrate.legs import Couple
from sidecar.calibrate.measuring import Found, measure
from sidecar.calibrate.options import Options
from sidecar.calibrate.outcomes import Outcome
from sidecar.calibrate.outputs import STANDARD_OUTPUT, BadOutput, Output
from sidecar.calibrate.plan import Leg
from sidecar.calibrate.progress import Progress, columns
from sidecar.calibrate.report import Report, Setting, reported
from sidecar.calibrate.scene import Scene
from sidecar.calibrate.tokens import Prompts, accepted
from sidecar.interrupts import cancelling
from sidecar.remote import RemoteError, connected

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WRITERS = {**machine.OUTPUTS, "svg": picture.svg}


def run(options: Options, scene: Scene, legs: Sequence[Leg], seed: int) -> Report:
    """Measure; what was found."""
    found = Found()
    progress = Progress(legs, sys.stderr, columns(sys.stderr))
    try:
        cut, prompts = asyncio.run(_measured(options, scene, legs, (found, progress)))
    finally:
        progress.end()
    setting = Setting(
        source=options.source.url,
        consumer=options.consumer.url,
        pair=scene.pair,
        model=scene.model,
        block_tokens=scene.block_tokens,
        legs=len(legs),
        rounds=options.rounds,
        seed=seed,
        headroom=options.headroom,
        load=options.load,
        load_answered=found.load.answered,
        load_failed=found.load.failed,
        ranks=options.dp_ranks,
        token_ids=prompts is None or prompts.span is not None,
    )
    return reported(setting, found.warm, found.measured, cut, found.gone)


async def _measured(
    options: Options, scene: Scene, legs: Sequence[Leg], seen: tuple[Found, Progress]
) -> tuple[Outcome | None, Prompts | None]:
    """How the run was cut short, if it was, and the prompts that it had."""
    found, progress = seen
    made: list[Prompts] = []
    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(_all(options, scene, legs, (found, progress, made)))
        cancelling(measuring, _SIGNALS)
        # A task that was cancelled is no failure of its group.
        await asyncio.wait([measuring])
    cut = Outcome.INTERRUPTED if measuring.cancelled() else Outcome.UNREACHABLE if found.gone else None
    return cut, made[0] if made else None


async def _all(
    options: Options, scene: Scene, legs: Sequence[Leg], kept: tuple[Found, Progress, list[Prompts]]
) -> None:
    found, progress, made = kept
    async with AsyncExitStack() as stack:
        try:
            couples = await _couples(stack, options, scene)
        except RemoteError as error:
            found.gone = str(error)
            return
        made.append(couples[0].prompts)
        if options.load:
            engines = [remote for couple in couples for remote in (couple.source, couple.consumer)]
            each = {"at_once": options.load, "tokens": options.load_tokens}
            background = loaded(engines, scene.model, couples[0].prompts, **each)
            found.load = await stack.enter_async_context(background)
        await measure(couples, legs, found, progress)


async def _couples(stack: AsyncExitStack, options: Options, scene: Scene) -> list[Couple]:
    couples: list[Couple] = []
    for rank in range(options.dp_ranks):
        source, consumer = [
            await stack.enter_async_context(
                connected(place.of_rank(rank), options.trust, timeout_s=options.timeout_s)
            )
            for place in (options.source, options.consumer)
        ]
        prompts = couples[0].prompts if couples else await accepted(source, scene.model)
        directive = scene.aim.directive(rank)
        couple = Couple(source, consumer, scene.model, scene.block_tokens, prompts, directive)
        couple.alone = not options.load
        couples.append(couple)
    return couples


def show(report: Report, places: Mapping[str, str], outputs: Mapping[str, Output]) -> int:
    """Files first: nothing that becomes of standard output keeps them from being written. The exit code."""
    ended: int = report.ended
    for name, output in outputs.items():
        try:
            output.write(_WRITERS[name](report))
            print(f"{name}: {output.place}", file=sys.stderr)
        except BadOutput as error:
            print(f"{PROG}: {error}", file=sys.stderr)
            ended = Outcome.UNWRITTEN
    [name] = [name for name, place in places.items() if place == STANDARD_OUTPUT] or [""]
    streams.show(_WRITERS[name](report) if name else f"{text.text(report)}\n", end="")
    return ended
