"""The load: closed-loop connections, every answer checked.

Rule: it reads runs as JSON lines from standard input and answers each with one line; it ends when its input
does. An answer counts when its status is 200 and it has every event; everything else is an error. Each run
is shared out among several processes, as the engine is (engine.py): requests and reads that come one by one.
"""

from __future__ import annotations

import functools
import json
import os
import select
import sys
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from time import monotonic

from tests.bench.lane import Lane

# What a prompt of chat and source code is made of: in JSON every line has escapes.
_PARAGRAPH = """Question %d: why does
\tdef cached(key): return store["%s"]  # {"hit": 0.75} \\o/
miss when the prefix is 12,345 tokens long? See https://example.org/kv?page=2&sort=asc and be brief.
"""
_READ_BYTES = 1 << 18
_PROCESSES = 8
# After a run's end its last answers may take so long: the naive proxy with 1,000 streams needs 30 s.
_GRACE_S = 90.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run. events: of a stream, [DONE] not among them; 0 asks for one JSON answer.

    seconds: until when connections ask again; each finishes what it asked for.
    """

    port: int
    connections: int
    seconds: float
    prompt_bytes: int
    events: int = 0
    gap_ms: int = 5
    headers: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """What a run saw. events: with [DONE]. first_ms: to the first byte of each answer's body, in order."""

    answers: int = 0
    events: int = 0
    seconds: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


@functools.lru_cache(16)
def body_of(prompt_bytes: int, events: int, gap_ms: int) -> bytes:
    """The JSON of a request whose prompt takes about `prompt_bytes` in it."""
    paragraphs: list[str] = []
    left_bytes = prompt_bytes
    while left_bytes > 0:
        number = len(paragraphs)
        paragraphs.append(json.dumps(_PARAGRAPH % (number, "k" * (number % 7)))[1:-1])
        left_bytes -= len(paragraphs[-1])
    stream = "true" if events else "false"
    return (
        '{"model":"bench","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"'
        f'{"".join(paragraphs)}"}}],"temperature":0.7,"max_tokens":{events or 16},"gap_ms":{gap_ms},'
        f'"stream":{stream}}}'
    ).encode()


def request_of(run: Run) -> bytes:
    """The bytes of each request of a run."""
    body = body_of(run.prompt_bytes, run.events, run.gap_ms)
    lines = "".join(f"{line}\r\n" for line in run.headers)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{run.port}\r\nuser-agent: bench\r\n"
        f"accept: */*\r\ncontent-type: application/json\r\n{lines}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Load:
    """One run at work."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._request = request_of(run)
        self._outcome = Outcome()
        self._epoll = select.epoll()
        self._lanes: dict[int, Lane] = {}
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._began_s = monotonic()
        # Streams begin one after the other over the time that one takes, so that they do not march in step.
        spread_s = run.events * run.gap_ms / 1000
        self._waiting = deque(i * spread_s / run.connections for i in range(run.connections))

    def go(self) -> Outcome:
        """Run until every connection has its last answer."""
        deadline_s = self._run.seconds + _GRACE_S
        while (self._waiting or self._lanes) and self._passed_s() < deadline_s:
            self._begin_due()
            for fd, event in self._epoll.poll(self._wait_s(), len(self._lanes) or 1):
                self._turn(self._lanes[fd], event)
        for lane in list(self._lanes.values()):
            self._end(lane, "no whole answer in time")
        self._epoll.close()
        self._outcome.seconds = self._passed_s()
        return self._outcome

    def _passed_s(self) -> float:
        return monotonic() - self._began_s

    def _wait_s(self) -> float:
        return max(0.0, self._waiting[0] - self._passed_s()) if self._waiting else 1.0

    def _begin_due(self) -> None:
        while self._waiting and self._waiting[0] <= self._passed_s():
            self._waiting.popleft()
            self._open()

    def _open(self) -> None:
        try:
            lane = Lane(self._run.port, self._request)
        except OSError as error:
            self._outcome.errors[f"connect: {error.strerror}"] += 1
            return
        self._lanes[lane.fd] = lane
        self._epoll.register(lane.fd, select.EPOLLIN | select.EPOLLOUT)

    def _turn(self, lane: Lane, event: int) -> None:
        """Send or read, whatever is its turn; a request that is sent whole waits for reading only."""
        try:
            if event & select.EPOLLOUT and lane.push():
                self._epoll.modify(lane.fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                self._read(lane)
        except OSError as error:
            self._end(lane, f"connection: {error.strerror}")

    def _read(self, lane: Lane) -> None:
        count = lane.sock.recv_into(self._buffer)
        if not count:
            self._end(lane, "connection closed within an answer")
        elif lane.take(bytes(self._buffer[:count])):
            self._finish(lane)

    def _finish(self, lane: Lane) -> None:
        outcome, run = self._outcome, self._run
        outcome.first_ms.append(lane.first_s * 1000)
        wrong = lane.wrong(run.events + 1 if run.events else 0)
        if wrong:
            outcome.errors[wrong] += 1
        else:
            outcome.answers += 1
            outcome.events += run.events + 1 if run.events else 0
        if self._passed_s() >= run.seconds:
            self._end(lane, None)
        elif lane.closes:
            self._end(lane, None)
            self._open()
        else:
            lane.ask()
            if not lane.push():
                self._epoll.modify(lane.fd, select.EPOLLIN | select.EPOLLOUT)

    def _end(self, lane: Lane, error: str | None) -> None:
        if error:
            self._outcome.errors[error] += 1
        del self._lanes[lane.fd]
        lane.sock.close()


def together(run: Run) -> Outcome:
    """Do a run with its connections shared out among processes."""
    body_of(run.prompt_bytes, run.events, run.gap_ms)  # made once, before there are many
    shares = [len(range(i, run.connections, _PROCESSES)) for i in range(_PROCESSES)]
    parts = [_in_a_process(replace(run, connections=share)) for share in shares if share]
    whole = Outcome()
    for reader, pid in parts:
        with os.fdopen(reader) as told:
            part = Outcome(**json.load(told))
        os.waitpid(pid, 0)
        whole.answers += part.answers
        whole.events += part.events
        whole.seconds = max(whole.seconds, part.seconds)
        whole.first_ms += part.first_ms
        whole.errors.update(part.errors)
    return whole


def _in_a_process(run: Run) -> tuple[int, int]:
    """Begin a run in a process of its own: where its outcome can be read, and its id."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        with os.fdopen(writer, "w") as tell:
            json.dump(asdict(Load(run).go()), tell)
    finally:
        os._exit(0)


def main() -> None:
    """Answer runs until standard input ends."""
    for line in sys.stdin:
        fields = json.loads(line)
        outcome = together(Run(**{**fields, "headers": tuple(fields["headers"])}))
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
