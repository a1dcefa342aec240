"""The queue in front of the block pool."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.lab.admission import Admission
from sidecar.lab.blocks import BlockPool


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_at_most_so_many_run_and_the_next_enters_when_one_leaves() -> None:
    admission = Admission(BlockPool(100, 1), max_num_seqs=2)
    entered: list[int] = []

    async def enter(number: int) -> None:
        await admission.enter(1)
        entered.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(enter(number))
        await settle()
        assert entered == [0, 1]
        admission.leave(1)
    assert entered == [0, 1, 2]


async def test_a_request_waits_until_its_blocks_are_free() -> None:
    pool = BlockPool(4, 1)
    admission = Admission(pool, max_num_seqs=10)
    await admission.enter(3)
    taken = [pool.take() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(admission.enter(2))
        await settle()
        assert not waiting.done()
        pool.release(taken)
    assert waiting.done()


async def test_a_small_request_does_not_overtake_a_large_one() -> None:
    admission = Admission(BlockPool(4, 1), max_num_seqs=10)
    await admission.enter(3)
    async with asyncio.TaskGroup() as tasks:
        large, small = tasks.create_task(admission.enter(4)), tasks.create_task(admission.enter(1))
        await settle()
        assert (large.done(), small.done()) == (False, False)
        admission.leave(3)
        await settle()
        assert (large.done(), small.done()) == (True, False)
        admission.leave(4)


async def test_who_leaves_the_queue_makes_room_for_those_behind() -> None:
    admission = Admission(BlockPool(4, 1), max_num_seqs=10)
    await admission.enter(3)
    async with asyncio.TaskGroup() as tasks:
        large, small = tasks.create_task(admission.enter(4)), tasks.create_task(admission.enter(1))
        await settle()
        large.cancel()
    assert small.done()


async def test_a_turn_that_comes_together_with_the_cancel_is_given_back() -> None:
    admission = Admission(BlockPool(4, 1), max_num_seqs=1)
    await admission.enter(4)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(admission.enter(4))
        await settle()
        admission.leave(4)
        waiting.cancel()
    assert waiting.cancelled()
    async with asyncio.timeout(1):
        await admission.enter(4)


async def test_leaving_gives_back_the_seat() -> None:
    admission = Admission(BlockPool(4, 1), max_num_seqs=1)
    await admission.enter(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await admission.enter(0)
    admission.leave(0)
    await admission.enter(0)
