"""A node's blocks in both tiers, and how requests take and leave them."""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES, BlockKey
from evctl.core.errors import IntegrityError
from evctl.core.events import KvEvicted, KvStored
from evctl.core.kv import KvLayout
from evctl.policy.eviction import RefClass
from evctl.wire.messages import InventoryBlock
from evengine.outlet import Counters, Outlet
from evengine.pool.l1 import L1Cache
from evengine.pool.memory import KvMemory
from evengine.ports import HostPool
from evengine.request import Sequence
from evengine.transfer.protocol import block_checksum


class BlockStore:
    """L1 slots in `memory`, backed by L2 where there is one."""

    def __init__(
        self,
        layout: KvLayout,
        memory: KvMemory,
        l1: L1Cache,
        l2: HostPool | None,
        outlet: Outlet,
        counters: Counters,
    ) -> None:
        self.layout = layout
        self.memory = memory
        self.l1 = l1
        self.l2 = l2
        self._outlet = outlet
        self._counters = counters
        self._evicted_l2: list[BlockKey] = []
        self._roots: dict[BlockKey, BlockKey] = {}
        """First block in L1 -> the root key before it."""
        self._restored_tokens = 0

    def take_prefix(self, seq: Sequence, headroom_blocks: int) -> int | None:
        """Slots for all of seq.tokens, the cached prefix included. Returns how many leading
        tokens need no computing, or None (and nothing taken) if there is no room.

        headroom_blocks stay free, so that running decodes can grow.
        """
        keys = seq.usable_keys()
        held = self.l1.match(keys)
        wanted = self.layout.blocks_for(len(seq.tokens)) - len(held)
        room = self.l1.available_blocks - headroom_blocks
        # alone, a request may have everything; otherwise it could wait for room for ever
        slots = self.l1.allocate(wanted) if wanted <= room or not headroom_blocks else None
        if slots is None:
            self.l1.release(held)
            return None
        seq.slots = held + slots
        restored = self._restore(seq, len(held), keys)
        seq.published = len(held) + restored
        seq.computed = seq.published * self.layout.block_tokens
        return seq.computed

    def extend_prefix(self, seq: Sequence) -> None:
        """Use blocks that another request has published since `seq` was admitted: forks that
        arrive together compute their prefix once."""
        size = self.layout.block_tokens
        keys = seq.usable_keys()
        while seq.computed == seq.published * size and seq.published < len(keys):
            found = self.l1.match([keys[seq.published]])
            if not found:
                return
            self.l1.release([seq.slots[seq.published]])
            seq.slots[seq.published] = found[0]
            seq.published += 1
            seq.computed += size

    def cover(self, seq: Sequence, tokens: int) -> bool:
        """Slots for positions 0 .. tokens - 1; False (and nothing taken) if there are none."""
        slots = self.l1.allocate(seq.blocks_needed(tokens))
        if slots is None:
            return False
        seq.slots.extend(slots)
        return True

    def publish(self, seq: Sequence) -> None:
        """Cache every newly completed block in L1, and write it through to L2."""
        full = seq.computed // self.layout.block_tokens
        if full <= seq.published:
            return
        seq.extend_keys()
        first = seq.published
        for block in range(first, full):
            slot = seq.slots[block]
            data = self.memory.block(slot)
            checksum = block_checksum(data)
            self._write_through(seq, block, data, checksum)
            seq.slots[block] = self._publish_one(seq, block, checksum)
        seq.published = full
        self._stored(seq, 1, first, full)

    def publish_received(self, seq: Sequence, held: int, checksums: dict[int, int]) -> None:
        """Cache the full blocks [held, ...) that another node computed and sent. They are not
        written to L2: the node that computed them did that."""
        full = seq.prompt_tokens // self.layout.block_tokens
        for block in range(held, full):
            seq.slots[block] = self._publish_one(seq, block, checksums[block])
        seq.published = full
        self._stored(seq, 1, held, full)

    def release(self, seq: Sequence) -> None:
        """The request leaves its slots; cached blocks stay until evicted."""
        self.l1.release(seq.slots)
        seq.slots = []

    def announce_evictions(self) -> None:
        """Tell what left each tier since the last call; before anything new is told, so that a
        block that left and came back is known as here."""
        for ref_class, count in zip(RefClass, self.l1.evicted_by_class, strict=True):
            self._counters[f"l1_evicted_{ref_class.name.lower()}"] = count
        evicted_l2, self._evicted_l2 = self._evicted_l2, []
        for tier, keys in ((1, self.l1.take_evicted()), (2, evicted_l2)):
            if keys:
                self._outlet.fact(KvEvicted(tier, b"".join(keys)))
            for key in keys if tier == 1 else ():
                if not self.l1.peek((key,)):  # it may be back already
                    self._roots.pop(key, None)

    def reclassify(self, epoch: int, ref_class: RefClass, keys: bytes) -> None:
        """The control plane's word on who needs the blocks of one chain."""
        ends = range(KEY_BYTES, len(keys) + 1, KEY_BYTES)
        chain = [keys[end - KEY_BYTES : end] for end in ends]
        # Deepest first: a block's class follows from those below it, so each changes once.
        self._counters["blocks_reclassified"] += self.l1.classify(epoch, chain[::-1], ref_class)

    def forget_classes(self) -> None:
        """Another life of the control plane counts references anew."""
        self.l1.forget_classes()

    def take_restored_tokens(self) -> int:
        """Tokens copied from L2 since the last call (t_rst of Eq. 1)."""
        restored, self._restored_tokens = self._restored_tokens, 0
        return restored

    def inventory(self) -> list[InventoryBlock]:
        """Every cached block, ancestors first, L1's with the checksum of its bytes as they are
        now; L2's (tier 2) carry 0: they are verified when they are read."""
        in_l2 = [InventoryBlock(key, 2, 0, 0) for key in self.l2.held_keys()] if self.l2 else []
        return in_l2 + [
            InventoryBlock(
                key=block.key,
                tier=1,
                references=block.pins,
                checksum=block_checksum(self.memory.block(block.slot)),
                parent=block.parent or self._roots[block.key],
            )
            for block in sorted(self.l1.blocks(), key=lambda block: block.depth)
        ]

    def check_integrity(self) -> list[str]:
        """Structure of both tiers, and every cached block's bytes against its checksum."""
        problems = self.l1.check_integrity()
        problems += [
            f"block {block.key.hex()} in slot {block.slot} does not match its checksum"
            for block in self.l1.blocks()
            if block_checksum(self.memory.block(block.slot)) != block.checksum
        ]
        return problems + (self.l2.check_integrity() if self.l2 else [])

    # ------------------------------------------------------------ inside

    def _restore(self, seq: Sequence, first: int, keys: list[BlockKey]) -> int:
        """Copy blocks that L2 holds behind the L1 prefix into their slots; returns how many."""
        if self.l2 is None:
            return 0
        found = self.l2.contains(keys[first:])
        for block in range(first, first + found):
            try:
                checksum = self.l2.read(keys[block], self.memory.block(seq.slots[block]))
            except (KeyError, IntegrityError):
                self._counters["l2_read_failed"] += 1
                found = block - first
                break
            seq.slots[block] = self._publish_one(seq, block, checksum)
        self._counters["l2_blocks_restored"] += found
        self._restored_tokens += found * self.layout.block_tokens
        if found:
            self._stored(seq, 1, first, first + found)
        return found

    def _publish_one(self, seq: Sequence, block: int, checksum: int) -> int:
        parent = seq.keys[block - 1] if block else b""
        if not block:
            self._roots[seq.keys[0]] = seq.start.root_key
        return self.l1.publish(seq.slots[block], seq.keys[block], parent, checksum)

    def _write_through(self, seq: Sequence, block: int, data: memoryview, checksum: int) -> None:
        if self.l2 is None:
            return
        key = seq.keys[block]
        held = self.l2.contains([key])
        evicted = self.l2.put(key, data, checksum)
        if evicted is None:
            self._counters["l2_put_refused"] += 1
            return
        self._evicted_l2.extend(evicted)
        if not held:
            self._stored(seq, 2, block, block + 1)

    def _stored(self, seq: Sequence, tier: int, first: int, end: int) -> None:
        if end <= first:
            return
        self.announce_evictions()
        parent = seq.keys[first - 1] if first else seq.start.root_key
        self._outlet.fact(KvStored(seq.request_id, tier, parent, b"".join(seq.keys[first:end])))
