"""Judges what a client saw of a fault: the right answer, an honest error, or a cut that shows.

Rule: pure; the same judgement for the matrix, where faults come one by one, and for the soak.
"""

from __future__ import annotations

from tests.faults.broken import Fault, Seen
from tests.faults.ways import BOOTSTRAP, DECODE, ENCODE, PREFILL, Way, has_right_answer
from tests.serving import Said


def is_own_error(said: Said, *statuses: int) -> bool:
    """Whether it is an error that the sidecar made, with its status wherever that stands."""
    if not (said.whole and said.status in statuses and said.all("x-sidecar-error") == [str(said.status)]):
        return False
    return bool(said.json["code"] == said.json["error"]["code"] == said.status)


def is_cut(said: Said) -> bool:
    """Whether an answer that had begun ends so that nobody takes it for whole: streams say why."""
    streamed = "chunked" in said.all("transfer-encoding") and "text/event-stream" in said.all("content-type")
    told = not streamed or b"\n\ndata: {" in said.body
    return not said.whole and told


def meant(way: Way, role: str, fault: Fault) -> Seen:
    """What a fault comes to where it strikes."""
    if fault.seen is Seen.STATUS and role in (BOOTSTRAP, ENCODE):
        return Seen.DEAD  # a refusal of theirs says nothing about the client's request
    if fault.seen is not Seen.UNUSABLE:
        return fault.seen
    if role == PREFILL and way.beside:
        return Seen.RIGHT  # nobody reads it
    return Seen.UNUSABLE if role == DECODE and not way.composed else Seen.DEAD


def is_honest(said: Said, seen: Seen, *, begun: bool) -> bool:
    """Whether the client saw what it should. begun: the failing answer may have reached it in part."""
    match seen:
        case Seen.RIGHT:
            return said.status == 200 and said.whole and has_right_answer(said.body)
        case Seen.STATUS:
            return said.status >= 300 and said.whole and said.body == b'{"error": "told"}'
        case Seen.UNUSABLE:
            return said.status == 200 and said.whole and not said.all("x-sidecar-error")
        case _:
            return is_own_error(said, 502) or (begun and is_cut(said))
