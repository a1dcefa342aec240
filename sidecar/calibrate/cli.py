"""`sidecar calibrate`: asks the pair, states the cost, measures, shows the report.

Rule: standard output is the report's alone; everything else goes to standard error. Returns an exit code of
`outcomes`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import secrets
import sys
from collections.abc import Mapping, Sequence

from sidecar.calibrate.aim import BadAim
from sidecar.calibrate.asking import question
from sidecar.calibrate.background import ANSWER_TOKENS
from sidecar.calibrate.cost import cost
from sidecar.calibrate.flags import PROG
from sidecar.calibrate.options import Options, parsed
from sidecar.calibrate.outcomes import MEANINGS, Outcome
from sidecar.calibrate.outputs import BadOutput, Output, opened
from sidecar.calibrate.plan import NoLength, check_enough, ordered, usable
from sidecar.calibrate.scene import BadScene, Scene, looked_at
from sidecar.remote import RemoteError, Uncounted
from sidecar.remote.texts import shown

_EXTRA = "numpy, which fits the curves, is not installed: pip install 'sidecar[calibrate]'"


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code."""
    try:
        options = parsed(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else Outcome.WRONG_USAGE
    if importlib.util.find_spec("numpy") is None:
        return _refuse(Outcome.WRONG_USAGE, _EXTRA)
    try:
        with opened(options.files) as outputs:
            return _calibrate(options, outputs)
    except (BadOutput, BadScene, BadAim, NoLength) as refused:
        return _refuse(Outcome.WRONG_USAGE, str(refused))
    except Uncounted as error:
        return _refuse(Outcome.UNUSABLE, str(error))
    except RemoteError as error:
        return _refuse(Outcome.UNREACHABLE, str(error))
    except KeyboardInterrupt:
        return Outcome.INTERRUPTED
    except Exception as error:  # of ours, or an answer of a kind that nobody thought of
        return _refuse(
            Outcome.BROKEN, f"{MEANINGS[Outcome.BROKEN]}: {type(error).__name__}: {shown(str(error))}"
        )


def _calibrate(options: Options, outputs: Mapping[str, Output]) -> int:
    """Raises what `main` has words for."""
    scene = asyncio.run(looked_at(options))
    _check_load(options, scene)
    lengths = usable(options.lengths, scene.block_tokens, scene.limit_tokens)
    check_enough(lengths, options.rounds)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    legs = ordered(lengths, options.rounds, options.dp_ranks, random.Random(seed).randrange)
    price = cost(legs, options.dp_ranks, (scene.pair.source, scene.counters), options.timeout_s)
    if scene.doubt:
        print(f"{PROG}: warning: {scene.doubt}", file=sys.stderr)
    for line in question(price, lengths, options.rounds, (options.load, options.load_tokens)):
        print(line, file=sys.stderr)
    if not options.yes and (answer := _answer()) is not None:
        return answer
    # Imported when it is certain to be needed: it brings numpy.
    from sidecar.calibrate.running import run, show

    return show(run(options, scene, legs, seed), options.files, outputs)


def _check_load(options: Options, scene: Scene) -> None:
    """Raises BadScene for background requests that every engine would refuse."""
    needed_tokens = options.load_tokens + ANSWER_TOKENS
    if options.load and scene.limit_tokens and needed_tokens > scene.limit_tokens:
        raise BadScene(
            f"--load-tokens: {options.load_tokens:,} tokens, and an answer of {ANSWER_TOKENS}, do not fit"
            f" into the model's limit of {scene.limit_tokens:,}"
        )


def _answer() -> int | None:
    """None to go on."""
    if not sys.stdin.isatty():
        return _refuse(Outcome.WRONG_USAGE, "nobody to ask: standard input is no terminal; say --yes")
    print("Start? [y/N] ", end="", file=sys.stderr, flush=True)
    said = sys.stdin.readline().strip().lower()
    return None if said in ("y", "yes") else Outcome.DECLINED


def _refuse(code: Outcome, problem: str) -> int:
    print(f"{PROG}: {problem}", file=sys.stderr)
    return code
