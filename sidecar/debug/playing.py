"""Plays a plan without sending anything: which legs it would send, in which order, on which condition.

Rule: pure. Where a plan needs a leg's answer it is given a placeholder, whose values read `<…>`, and that the
leg succeeds is taken for granted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sidecar.body import Body, dump
from sidecar.plan import Ask, Deliver, End, Finish, Leg, Offer, Plan, Reply, Role, Start, Step

# A plan that chunks, encodes and hands over sends as many legs as its request has images, and a few.
MAX_LEGS = 1000

# What vLLM 0.32's prefiller answers over NIXL, as far as decoders need it (contract section 5).
_HANDOFF = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    **dict.fromkeys(("remote_engine_id", "remote_request_id"), "<from the prefiller's answer>"),
    # A host, a port and a number, since a handoff without is none (`kvparams.complete_handoff`).
    "remote_host": "from-the-prefillers-answer",
    "remote_port": 1,
    "remote_block_ids": [[0, "<from the prefiller's answer>"]],
}
_ANSWERS: dict[Role, dict[str, Any]] = {
    Role.PREFILL: {"kv_transfer_params": _HANDOFF},
    Role.ENCODE: {"ec_transfer_params": {"<item>": "<from the encoder's answer>"}},
    Role.LOOKUP: {"0": {"engine_id": "<from the bootstrap server's answer>"}},
    # One chunk of a chunked decode that is also the last.
    Role.DECODE: {"choices": [{"message": {"content": "<the text so far>"}, "finish_reason": "stop"}]},
}

_IF_REFUSED = "the decoder's answer says that it has too little of the prompt"
_IF_FAILED = "no prefiller can be had, and the client has no byte yet"


@dataclass(frozen=True, slots=True)
class Sent:
    """One leg. how: the step it is part of. when: the condition on which it is sent, None without one."""

    leg: Leg
    how: str
    when: str | None = None


@dataclass(slots=True)
class Played:
    """What a plan would do. alone: as its end says (`plan.Deliver`). answered: it was given placeholders.
    chunked: legs like the last may follow.
    """

    legs: list[Sent] = field(default_factory=list)
    alone: str | None = None
    answered: bool = False
    chunked: bool = False


def played(plan: Plan) -> Played:
    """Run the plan to its end. Raises the SidecarError that it raises."""
    story, when = Played(), None
    try:
        step = next(plan)
        while len(story.legs) < MAX_LEGS:
            story.legs += _sent(step, when)
            story.answered |= isinstance(step, Ask)
            story.chunked |= _is_chunk(step)
            when = _IF_REFUSED if isinstance(step, Offer) else when
            step = plan.send(_replies(step))
        plan.close()
    except StopIteration as ended:
        _end(story, ended.value, when)
    return story


def _sent(step: Step, when: str | None) -> list[Sent]:
    match step:
        case Ask(legs):
            return [Sent(leg, "sent, and its answer awaited", when) for leg in legs]
        case Start(leg):
            return [Sent(leg, "sent, and run beside what follows", when)]
        case Offer(leg):
            return [Sent(leg, "sent, and its answer streamed to the client unless it is a refusal", when)]
        case _:
            return []


def _is_chunk(step: Step) -> bool:
    return isinstance(step, Ask) and any(leg.chunk for leg in step.legs)


def _replies(step: Step) -> list[Reply]:
    return [_placeholder(leg.role) for leg in step.legs] if isinstance(step, Ask) else []


def _placeholder(role: Role) -> Reply:
    content = dump(_ANSWERS[role])
    return Reply(200, b"OK", (), content, Body.parse(content))


def _end(story: Played, end: End, when: str | None) -> None:
    match end:
        case Deliver() as deliver:
            held = " once what runs beside has succeeded" if deliver.after_started else ""
            story.legs.append(Sent(deliver.leg, f"sent, and its answer given to the client{held}", when))
            story.alone = deliver.alone
            if deliver.otherwise:
                story.legs.append(Sent(deliver.otherwise.leg, "sent instead", _IF_FAILED))
        case Finish():
            return
