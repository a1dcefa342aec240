"""The five gates of a pull, each judged by its own figure: pass, fail, or not told.

Rule: pure. A gate says what it proves and no more; what HTTP does not tell is no pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.pulls import WHOLE, Pull


class State(StrEnum):
    """Of a gate."""

    PASS = "pass"
    FAIL = "fail"
    UNTOLD = "not told"


@dataclass(frozen=True, slots=True)
class Shown:
    """What was measured. why: nothing was, for this reason.

    kept_tokens: of the prompt, that the source had at the second time of asking. events: whether it
    publishes KV events. through_sidecar: the consumer is one. counted: pulls that its metrics count more.
    pull: directed at the source. control: a prompt that the source has, asked without a directive.
    """

    source: str
    consumer: str
    why: str = ""
    prefix_tokens: int = 0
    kept_tokens: float | None = None
    events: bool | None = None
    through_sidecar: bool = False
    counted: float | None = None
    pull: Pull | None = None
    control: Pull | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """name: what is asked. evidence: the figure. proves: what a pass means."""

    number: int
    name: str
    state: State
    evidence: str
    proves: str


def gates(shown: Shown) -> tuple[Gate, ...]:
    """All five, in the guide's order."""
    judged = (_index, _directive, _consumer, _source, _control)
    if shown.why:
        return tuple(
            Gate(at, name, State.UNTOLD, shown.why, proves)
            for at, (name, proves) in enumerate(_GATES, start=1)
        )
    return tuple(
        Gate(at, name, *judge(shown), proves)
        for at, ((name, proves), judge) in enumerate(zip(_GATES, judged, strict=True), start=1)
    )


_GATES = (
    (
        "tokens reach the index",
        "the source keeps the prefix; what the picker's index hears, HTTP does not tell",
    ),
    ("the directive is logged", "the sidecar told its engine to pull from this source"),
    ("the consumer's counter rises", "the consumer read KV from a peer, and from no tier of its own"),
    ("bytes move on the source", "the source was asked for the blocks, or gave them"),
    ("the control moves nothing", "what moved before came by the directive, and by nothing else"),
)

Judged = tuple[State, str]


def _index(shown: Shown) -> Judged:
    kept, prefix = shown.kept_tokens, shown.prefix_tokens
    events = {
        True: "KV events are on",
        False: "KV events are off (--kv-events-config)",
        None: "KV events: not told",
    }[shown.events]
    if kept is None:
        return State.UNTOLD, f"{shown.source} tells no cached tokens; {events}"
    if kept > prefix:
        says = f"{shown.source} tells of {kept:,.0f} tokens where {prefix:,} could be; {events}"
        return State.UNTOLD, f"could not tell: {says}"
    figure = f"{shown.source} had {kept:,.0f} of {prefix:,} tokens when asked again; {events}"
    held = kept >= WHOLE * prefix
    return (State.PASS if held and shown.events is not False else State.FAIL), figure


def _directive(shown: Shown) -> Judged:
    pull = shown.pull
    if pull is None or not shown.through_sidecar:
        return State.UNTOLD, f"{shown.consumer} is an engine: the directive was put into its body here"
    if pull.skipped:
        return State.FAIL, f"{shown.consumer} left it out: {pull.skipped}"
    if pull.directed:
        return State.PASS, f"x-sidecar-pull: directed; source {pull.directed}"
    if shown.counted is not None:
        state = State.PASS if shown.counted > 0 else State.FAIL
        return state, f"pulls_total on the metrics port of {shown.consumer}: +{shown.counted:.0f}"
    return State.UNTOLD, "needs --debug-endpoints on the sidecar, or its metrics port (--metrics-port)"


def _consumer(shown: Shown) -> Judged:
    pull = shown.pull
    if pull is None or pull.failure or pull.hung_s is not None:
        return State.FAIL, _failed(pull)
    if pull.doubt:
        return State.UNTOLD, f"could not tell what {shown.consumer} got: {pull.doubt}"
    if pull.moved_bytes is None:
        return State.UNTOLD, f"{shown.consumer} counts no bytes from peers"
    came = f"{pull.moved_bytes:,.0f} bytes from peers"
    tokens = "" if pull.came_tokens is None else f", {pull.came_tokens:,.0f} of {pull.prefix_tokens:,} tokens"
    return (State.PASS if pull.moved_bytes > 0 else State.FAIL), f"{shown.consumer} read {came}{tokens}"


def _source(shown: Shown) -> Judged:
    pull = shown.pull
    if pull is None:
        return State.FAIL, _failed(pull)
    if pull.given_bytes:
        return State.PASS, f"{shown.source} gave {pull.given_bytes:,.0f} bytes"
    if pull.source_faults:
        return State.UNTOLD, f"{shown.source}'s counters are unusable"
    if pull.looked_up is None:
        return State.UNTOLD, f"{shown.source} counts neither what it gives nor what it is asked for"
    asked = "was asked for blocks, and had them" if pull.moved_bytes else "was asked for blocks"
    if pull.looked_up and pull.moved_bytes:
        return State.PASS, f"{shown.source} {asked} (it does not count what it gives)"
    return (
        State.FAIL,
        f"{shown.source} {asked if pull.looked_up else 'was asked for no block'}, and gave nothing",
    )


def _control(shown: Shown) -> Judged:
    control = shown.control
    if control is None or control.failure:
        return State.UNTOLD, _failed(control)
    if control.faults:
        return State.UNTOLD, f"{shown.consumer}'s counters are unusable"
    if control.moved_bytes is None:
        return State.UNTOLD, f"{shown.consumer} counts no bytes from peers"
    figure = f"without a directive {shown.consumer} read {control.moved_bytes:,.0f} bytes from peers"
    if control.moved_bytes:
        return State.FAIL, f"{figure}: others direct pulls there, or the picker does"
    return State.PASS, figure


def _failed(pull: Pull | None) -> str:
    if pull is None:
        return "it was not tried"
    return pull.failure or f"no answer within {pull.hung_s or 0:g} s"


def failed(shown: Shown, judged: Sequence[Gate]) -> Iterator[Finding]:
    """A finding for every gate that did not hold, and one where none was tried."""
    about = (shown.source, shown.consumer)
    if shown.why:
        yield Finding(Severity.ERROR, "gates", about, "not tried", shown.why, "See the findings above.")
    for gate in judged:
        if gate.state is State.FAIL:
            check = f"gate {gate.number}"
            yield Finding(
                Severity.ERROR, check, about, "fail", f"{gate.name}: {gate.evidence}", _CHANGES[gate.number]
            )


_CHANGES = {
    1: "Give the source a cache that keeps prefixes, and --kv-events-config with a publisher.",
    2: "Look at the reason; see sidecar explain.",
    3: "See the finding of the pull.",
    4: "Look at the source's log: a refused handshake says there what differs.",
    5: "Try again without traffic; until then no figure here is the directive's alone.",
}
