"""Log lines for readers of every kind: slow, standing still, of several processes at once, gone."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, sleep

import pytest

from sidecar import background
from sidecar.background import Background


def lost(lines: int) -> bytes:
    return b"%d lost\n" % lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page: the end to read from, which never waits, and the end to write to."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(reading, False)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


async def read(descriptor: int, end: bytes, came: bytes = b"") -> bytes:
    """All that comes, slowly, until more has come and it ends so. came: what was there before."""
    before = came
    async with asyncio.timeout(20):
        while came == before or not came.endswith(end):
            with suppress(BlockingIOError):  # nothing is there yet
                came += os.read(descriptor, 4096)
            await asyncio.sleep(0.002)
    return came


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"%05d\n" % number for number in range(first, last))


async def test_lines_that_nobody_reads_wait_and_come_in_their_order(pipe: tuple[int, int]) -> None:
    output = Background(pipe[1], lost)
    for number in range(3000):
        output.write(numbered(number, number + 1))
    assert await read(pipe[0], b"02999\n") == numbered(0, 3000)


async def test_a_terminal_that_nobody_reads_holds_nobody_up() -> None:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    output = Background(slave, lost)
    for number in range(0, 20_000, 10):
        output.write(numbered(number, number + 10))
    came = await read(master, b"19999\r\n")
    assert came.replace(b"\r\n", b"\n") == numbered(0, 20_000)
    os.close(master)
    os.close(slave)


async def test_lines_that_are_too_many_are_counted_in_their_place(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WAITING_BYTES", 12_000)
    output = Background(pipe[1], lost)
    for number in range(5000):
        output.write(numbered(number, number + 1))
    came, number = b"", 0
    while number < 5000:
        came = await read(pipe[0], b" lost\n", came)
        number = 0
        for line in came.splitlines():  # each where it belongs, or how many are missing there
            missing = line.endswith(b" lost")
            assert missing or int(line) == number
            number += int(line[:-5]) if missing else 1
    assert number == 5000
    output.write(b"after\n")
    assert await read(pipe[0], b"after\n") == b"after\n"


async def test_a_line_that_is_longer_than_all_that_may_wait_comes_whole(pipe: tuple[int, int]) -> None:
    line = b"x" * (background.WAITING_BYTES + 5) + b"\n"
    Background(pipe[1], lost).write(line)
    assert await read(pipe[0], b"\n") == line


def test_without_a_loop_what_has_no_room_is_lost_and_counted(pipe: tuple[int, int]) -> None:
    output = Background(pipe[1], lost)
    output.write(numbered(0, 10))
    output.write(numbered(10, 15))
    assert os.read(pipe[0], 4096) == numbered(0, 10)
    output.write(numbered(15, 17))
    assert os.read(pipe[0], 4096) == lost(5) + numbered(15, 17)


async def test_a_descriptor_that_others_have_made_nonblocking_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    output = Background(pipe[1], lost)
    for number in range(3000):
        output.write(numbered(number, number + 1))
    assert await read(pipe[0], b"02999\n") == numbered(0, 3000)


async def test_lines_that_cannot_be_written_are_counted(tmp_path: object) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    output = Background(full, lost)
    output.write(numbered(0, 2))
    output.drain(5)
    output.write(numbered(2, 3))  # and with it that two are lost
    output.drain(5)
    reading, writing = os.pipe()
    os.dup2(writing, full)
    output.write(numbered(3, 4))
    output.drain(5)
    assert os.read(reading, 4096) == lost(3) + numbered(3, 4)
    for descriptor in (full, reading, writing):
        os.close(descriptor)


def test_what_a_parent_has_lost_is_not_told_by_its_children(pipe: tuple[int, int]) -> None:
    output = Background(pipe[1], lost)
    output.write(numbered(0, 1))
    output.write(numbered(1, 2))
    assert os.read(pipe[0], 4096) == numbered(0, 1)

    async def child() -> None:
        output.write(b"child\n")
        output.drain(5)

    pid = os.fork()
    if not pid:
        asyncio.run(child())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(pipe[0], 4096) == b"child\n"


_MANY = """
import asyncio, os, sys
from sidecar.background import Background
async def main(name):
    output = Background(2, lambda lines: b"lost")
    for number in range(1500):
        output.write(b"%s %04d %s\\n" % (name, number, name * 400))
        if not number % 100:
            await asyncio.sleep(0.002)
    output.drain(20)
asyncio.run(main(sys.argv[1].encode()))
"""


def test_lines_of_several_processes_stay_whole() -> None:
    reading, writing = os.pipe()
    names = "abc"
    processes = [subprocess.Popen([sys.executable, "-c", _MANY, name], stderr=writing) for name in names]
    os.close(writing)
    with open(reading, "rb") as stream:
        pieces = []
        while piece := stream.read(100_000):  # while they go on writing
            pieces.append(piece)
            sleep(0.01)
    assert [process.wait(20) for process in processes] == [0, 0, 0]
    lines = b"".join(pieces).splitlines()
    for name in names.encode():
        own = [line for line in lines if line[0] == name]
        assert own == [b"%c %04d %b" % (name, number, bytes([name]) * 400) for number in range(1500)]
    assert len(lines) == 4500


_END = """
import asyncio, logging
from sidecar import logs
logs.configure('info', 'text')
async def main():
    for number in range(5000): logging.getLogger('sidecar').info('%04d', number)
asyncio.run(main())
print('all told', flush=True)
"""


@pytest.mark.parametrize("reads", [False, True])
def test_the_end_of_the_program_waits_a_moment_for_its_reader(reads: bool) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", _END], stdout=subprocess.PIPE, stderr=writing, text=True
    ) as process:
        os.close(writing)
        assert process.stdout is not None
        assert process.stdout.readline() == "all told\n"
        told_s = monotonic()
        if not reads:
            assert process.wait(20) == 0
            assert monotonic() - told_s < 10
        with open(reading, "rb") as stream:
            lines = stream.read().splitlines()
        assert process.wait(20) == 0
    numbers = [int(line[-4:]) for line in lines]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) == 5000 if reads else 65536 // 23 - 200 < len(numbers) < 5000
