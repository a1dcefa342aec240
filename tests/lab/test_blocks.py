"""The GPU block pool and the CPU tier."""

from __future__ import annotations

import pytest

from sidecar.lab.blocks import Block, BlockPool, HostTier


def name(i: int) -> bytes:
    return f"hash-{i}".encode()


def fill(pool: BlockPool, *numbers: int) -> list[Block]:
    """Blocks with content, taken and committed."""
    assert pool.reserve(len(numbers))
    blocks = [pool.take() for _ in numbers]
    for block, i in zip(blocks, numbers, strict=True):
        block.kv = bytes([i]) * 4
        pool.commit(block, name(i))
    return blocks


def test_a_released_block_is_found_again_with_its_bytes() -> None:
    pool = BlockPool(4, 4)
    pool.release(fill(pool, 1, 2))
    assert pool.match([name(1), name(2), name(3)]) == 2
    assert [block.kv for block in pool.acquire([name(1), name(2)])] == [b"\1" * 4, b"\2" * 4]


def test_only_the_leading_blocks_match() -> None:
    pool = BlockPool(4, 4)
    pool.release(fill(pool, 1, 3))
    assert pool.match([name(1), name(2), name(3)]) == 1


def test_the_least_recently_used_block_is_evicted_and_a_sequence_loses_its_tail_first() -> None:
    pool = BlockPool(4, 4)
    pool.release(fill(pool, 1, 2))
    pool.release(fill(pool, 3, 4))
    pool.release(pool.acquire([name(1)]))
    fill(pool, 5)
    assert pool.match([name(1)]) == 1
    assert pool.match([name(2)]) == 0
    fill(pool, 6)
    assert pool.match([name(4)]) == 0
    assert pool.match([name(3)]) == 1


def test_blocks_in_use_are_never_evicted() -> None:
    pool = BlockPool(2, 4)
    fill(pool, 1)
    assert not pool.reserve(2)
    assert pool.reserve(1)


def test_a_shared_block_is_idle_after_its_last_user() -> None:
    pool = BlockPool(1, 4)
    (block,) = fill(pool, 1)
    pool.share(block)
    pool.release([block])
    assert not pool.reserve(1)
    pool.release([block])
    assert pool.reserve(1)


def test_what_is_reserved_is_not_there_for_others_until_given_back() -> None:
    pool = BlockPool(3, 4)
    assert pool.reserve(2)
    assert not pool.reserve(2)
    pool.unreserve(2)
    assert pool.reserve(3)


def test_a_freed_block_is_read_by_id_as_long_as_it_is_not_reused() -> None:
    pool = BlockPool(1, 4)
    (block,) = fill(pool, 7)
    pool.release([block])
    assert pool.read([block.id]) == b"\7" * 4
    fill(pool, 8)
    assert pool.read([block.id]) == b"\x08" * 4


def test_a_partly_written_block_reads_as_a_whole_one() -> None:
    pool = BlockPool(2, 4)
    (block,) = fill(pool, 7)
    block.kv = b"\7"
    assert pool.read([0, block.id, 2]) == b"\0\0\0\0\7\0\0\0\0\0\0\0"


def test_a_block_that_does_not_exist_cannot_be_read() -> None:
    with pytest.raises(IndexError):
        BlockPool(2, 4).read([3])


def test_the_same_content_twice_is_found_once() -> None:
    pool = BlockPool(4, 4)
    first, second = fill(pool, 1), fill(pool, 1)
    pool.release(second)
    assert pool.acquire([name(1)]) == first


def test_forgotten_blocks_are_not_found() -> None:
    pool = BlockPool(2, 4)
    pool.release(fill(pool, 1))
    pool.forget()
    assert pool.match([name(1)]) == 0
    assert pool.usage == 0


def test_usage_counts_blocks_in_use() -> None:
    pool = BlockPool(4, 4)
    fill(pool, 1)
    pool.release(fill(pool, 2))
    assert pool.usage == 0.25


def test_the_host_tier_evicts_the_least_recently_used_chunk() -> None:
    tier = HostTier(2)
    tier.put(name(1), b"1")
    tier.put(name(2), b"2")
    assert tier.get(name(1)) == b"1"
    tier.put(name(3), b"3")
    assert [tier.get(name(i)) for i in (1, 2, 3)] == [b"1", None, b"3"]


def test_pinned_chunks_stay_and_a_tier_full_of_them_takes_no_more() -> None:
    tier = HostTier(2)
    tier.put(name(1), b"1")
    tier.put(name(2), b"2")
    assert tier.pin([name(1), name(2), name(3)]) == [name(1), name(2)]
    assert tier.pinned_fraction == 1
    assert not tier.put(name(3), b"3")
    tier.forget()
    assert tier.get(name(1)) == b"1"
    tier.unpin([name(1)])
    assert tier.put(name(3), b"3")
    assert tier.get(name(1)) is None


def test_a_chunk_pinned_twice_needs_two_unpins() -> None:
    tier = HostTier(1)
    tier.put(name(1), b"1")
    tier.pin([name(1)])
    tier.pin([name(1)])
    tier.unpin([name(1)])
    assert not tier.put(name(2), b"2")
