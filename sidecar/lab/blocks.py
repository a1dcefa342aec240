"""The two caches of an engine: the GPU's block pool and the CPU tier of offloaded chunks, both LRU.

Rule: blocks in use are never evicted; a block's bytes stay readable by its id after it is freed, until it is
reused (as GPU memory does, which is what makes replayed NIXL block ids return whatever is there).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Block:
    """One GPU block; `hash` is None while it is not full, `kv` is what has been written into it."""

    id: int
    hash: bytes | None = None
    kv: bytes = b""
    users: int = 0


class BlockPool:
    """The GPU cache: `capacity` blocks with ids from 1 (0 is vLLM's null block)."""

    def __init__(self, capacity: int, block_bytes: int) -> None:
        self._capacity, self._block_bytes = capacity, block_bytes
        self._made: list[Block] = []
        self._by_hash: dict[bytes, Block] = {}
        self._idle: OrderedDict[int, Block] = OrderedDict()
        self._reserved = 0
        self.freed: Callable[[], None] = lambda: None  # called when blocks became idle

    @property
    def usage(self) -> float:
        """Fraction of blocks in use."""
        return (len(self._made) - len(self._idle)) / self._capacity

    def match(self, hashes: Iterable[bytes]) -> int:
        """How many leading hashes are cached."""
        count = 0
        for block_hash in hashes:
            if block_hash not in self._by_hash:
                break
            count += 1
        return count

    def acquire(self, hashes: Sequence[bytes]) -> list[Block]:
        """The cached blocks of the leading hashes, now in use."""
        blocks = [self._by_hash[block_hash] for block_hash in hashes[: self.match(hashes)]]
        for block in blocks:
            self.share(block)
        return blocks

    def share(self, block: Block) -> None:
        """One more user of a block."""
        block.users += 1
        self._idle.pop(block.id, None)

    def reserve(self, count: int) -> bool:
        """Sets `count` blocks aside for a request, or says that they are not there now."""
        free = self._capacity - len(self._made) + len(self._idle) - self._reserved
        if count > free:
            return False
        self._reserved += count
        return True

    def unreserve(self, count: int) -> None:
        """Gives back what a request set aside and did not take."""
        self._reserved -= count

    def take(self) -> Block:
        """An empty block out of a reservation: a fresh one, else the least recently used one."""
        self._reserved -= 1
        if len(self._made) < self._capacity:
            block = Block(len(self._made) + 1)
            self._made.append(block)
        else:
            _, block = self._idle.popitem(last=False)
            if block.hash is not None:
                self._by_hash.pop(block.hash, None)
            block.hash = None
        block.users = 1
        return block

    def commit(self, block: Block, block_hash: bytes) -> None:
        """Makes a full block findable, unless another block with the same content already is."""
        if block_hash not in self._by_hash:
            block.hash = block_hash
            self._by_hash[block_hash] = block

    def release(self, blocks: Sequence[Block]) -> None:
        """One user less for each; the tail of a sequence becomes idle first, so it is evicted first."""
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self._idle[block.id] = block
                if block.hash is None:
                    self._idle.move_to_end(block.id, last=False)
        self.freed()

    def read(self, ids: Iterable[int]) -> bytes:
        """What is in these blocks now, zeros where nothing was written; raises IndexError."""
        found = bytearray()
        for block_id in ids:
            if not 0 <= block_id <= self._capacity:
                raise IndexError(f"no block {block_id}")
            kv = self._made[block_id - 1].kv if 0 < block_id <= len(self._made) else b""
            found += kv.ljust(self._block_bytes, b"\0")
        return bytes(found)

    def forget(self) -> None:
        """Drops every cached prefix; running requests keep their blocks."""
        for block in self._by_hash.values():
            block.hash = None
        self._by_hash.clear()


class HostTier:
    """The CPU tier: chunks of KV by the hash of their last block."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._chunks: OrderedDict[bytes, bytes] = OrderedDict()
        self._pins: Counter[bytes] = Counter()

    def __contains__(self, chunk_hash: bytes) -> bool:
        return chunk_hash in self._chunks

    @property
    def pinned_fraction(self) -> float:
        """Fraction of the tier pinned by transfers and handovers."""
        return len(self._pins) / self._capacity

    def put(self, chunk_hash: bytes, kv: bytes) -> bool:
        """Stores a chunk, evicting the least recently used unpinned one; False if there is no room."""
        if chunk_hash not in self._chunks and len(self._chunks) >= self._capacity and not self._evict():
            return False
        self._chunks[chunk_hash] = kv
        self._chunks.move_to_end(chunk_hash)
        return True

    def get(self, chunk_hash: bytes) -> bytes | None:
        """A chunk's bytes, now the most recently used."""
        kv = self._chunks.get(chunk_hash)
        if kv is not None:
            self._chunks.move_to_end(chunk_hash)
        return kv

    def pin(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Protects the leading cached chunks from eviction; returns their hashes, for `unpin`."""
        pinned: list[bytes] = []
        for chunk_hash in hashes:
            if chunk_hash not in self._chunks:
                break
            self._pins[chunk_hash] += 1
            pinned.append(chunk_hash)
        return pinned

    def unpin(self, hashes: Iterable[bytes]) -> None:
        """Ends one protection of each."""
        for chunk_hash in hashes:
            self._pins[chunk_hash] -= 1
            if self._pins[chunk_hash] <= 0:
                del self._pins[chunk_hash]

    def forget(self) -> None:
        """Drops every chunk that is not pinned."""
        for chunk_hash in [h for h in self._chunks if h not in self._pins]:
            del self._chunks[chunk_hash]

    def _evict(self) -> bool:
        victim = next((chunk_hash for chunk_hash in self._chunks if chunk_hash not in self._pins), None)
        if victim is None:
            return False
        del self._chunks[victim]
        return True
