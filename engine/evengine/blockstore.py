"""A node's blocks in both tiers, and how requests take and leave them."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import msgspec

from evctl.core.blocks import KEY_BYTES, BlockKey
from evctl.core.events import KvEvicted, KvStored
from evctl.core.kv import FetchPiece
from evctl.policy.eviction import RefClass
from evctl.wire.messages import InventoryBlock
from evengine.outlet import Counters, Outlet
from evengine.pool.copier import Checked, Copier, Keep
from evengine.pool.l1 import NO_WORD, ClassWord, L1Cache
from evengine.pool.l2 import HostPool
from evengine.pool.pages import Pages
from evengine.ports import Clock, Slot
from evengine.request import Sequence


class KeepLimits(msgspec.Struct, frozen=True):
    """queue_blocks: that may wait for their copy into L2; beyond that they are not kept there,
    and counted."""

    queue_blocks: int = 2048


class BlockStore:
    """L1 slots, and L2 behind them where there is one."""

    def __init__(
        self,
        pages: Pages,
        l1: L1Cache,
        pool: HostPool | None,
        copier: Copier | None,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        limits: KeepLimits = KeepLimits(),  # noqa: B008  # frozen
    ) -> None:
        self.pages = pages
        self.layout = pages.layout
        self.l1 = l1
        self.pool = pool
        self._copier = copier
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._limits = limits
        self._keeping: set[BlockKey] = set()
        """Blocks on their way from L1 to L2."""
        self._roots: dict[BlockKey, BlockKey] = {}
        """First block in L1 -> the root key before it."""
        self._restored_tokens = 0
        self.leaving_blocks = 0
        """Slots that requests gave back and that come free when copies are done."""

    # ------------------------------------------------------------ L1: taking and leaving

    def leading(self, keys: Seq[BlockKey], fetched: Seq[FetchPiece]) -> int:
        """How many leading blocks are here in any tier, or named by these pieces."""
        named = {block for piece in fetched for block in range(piece.start, piece.end)}
        for block, key in enumerate(keys):
            here = self.l1.find(key) or (self.pool is not None and self.pool.find(key))
            if not here and block not in named:
                return block
        return len(keys)

    def take_prefix(self, seq: Sequence, headroom_blocks: int) -> bool:
        """Slots for all of seq.tokens, L1's cached prefix in the first of them. False, and
        nothing taken, if there is no room.

        headroom_blocks stay free, so that running decodes can grow.
        """
        held = self.l1.match(seq.usable_keys())
        wanted = self.layout.blocks_for(len(seq.tokens)) - len(held)
        room = self.l1.available_blocks - headroom_blocks
        # alone, a request may have everything; otherwise it could wait for room for ever
        slots = self.l1.allocate(wanted) if wanted <= room or not headroom_blocks else None
        if slots is None:
            self.l1.release(held)
            return False
        seq.slots = held + slots
        seq.published = len(held)
        seq.computed = seq.published * self.layout.block_tokens
        return True

    def adopt(self, seq: Sequence, block: int) -> bool:
        """Use block number `block`, which follows what the request has, if L1 has it by now."""
        key = seq.keys[block]
        if block != seq.published or not self.l1.peek((key,)):
            return False
        found = self.l1.match([key])
        if not found:  # reuse is off
            return False
        self.l1.release([seq.slots[block]])
        seq.slots[block] = found[0]
        seq.published += 1
        seq.computed += self.layout.block_tokens
        return True

    def extend_prefix(self, seq: Sequence) -> None:
        """Use blocks that another request has published since `seq` was admitted: forks that
        arrive together compute their prefix once."""
        usable = len(seq.usable_keys())
        while seq.computed == seq.published * self.layout.block_tokens:
            if seq.published >= usable or not self.adopt(seq, seq.published):
                return

    def cover(self, seq: Sequence, tokens: int) -> bool:
        """Slots for positions 0 .. tokens - 1; False (and nothing taken) if there are none."""
        slots = self.l1.allocate(seq.blocks_needed(tokens))
        if slots is None:
            return False
        seq.slots.extend(slots)
        return True

    def release(self, seq: Sequence) -> None:
        """The request leaves its slots; cached blocks stay until evicted. Slots that a copy
        reads or writes at this moment follow when it is done."""
        if seq.slots_in_use:
            seq.leaving.extend(seq.slots)
            self.leaving_blocks += len(seq.slots)
        else:
            self.l1.release(seq.slots)
        seq.slots = []

    def hold_slots(self, seq: Sequence, blocks: int) -> None:
        """So many blocks of the request are being copied: its slots must stay."""
        seq.slots_in_use += blocks

    def let_go_slots(self, seq: Sequence, blocks: int) -> None:
        seq.slots_in_use -= blocks
        if not seq.slots_in_use and seq.leaving:
            self.l1.release(seq.leaving)
            self.leaving_blocks -= len(seq.leaving)
            seq.leaving = []
        if not seq.slots_in_use and seq.settles:
            self.settle(seq)

    # ------------------------------------------------------------ blocks that are complete

    def publish(self, seq: Sequence) -> None:
        """Cache every newly completed block in L1, and see to it that L2 gets it."""
        full = seq.computed // self.layout.block_tokens
        if full <= seq.published:
            return
        seq.extend_keys()
        first = seq.published
        checksums = []
        for block in range(first, full):
            checksum = self.pages.checksum(seq.slots[block])
            checksums.append(checksum)
            seq.slots[block] = self._publish_one(seq, block, checksum)
        seq.published = full
        self._tell(seq, 1, first, full)
        if self.pool is not None:
            self._keep(seq, first, checksums)

    def publish_received(self, seq: Sequence, held: int, checksums: dict[int, int]) -> None:
        """Cache the full blocks [held, ...) that another node computed and sent. They are not
        written to L2: the node that computed them did that."""
        full = seq.prompt_tokens // self.layout.block_tokens
        for block in range(held, full):
            seq.slots[block] = self._publish_one(seq, block, checksums[block])
        seq.published = full
        self._tell(seq, 1, held, full)

    def publish_restored(self, seq: Sequence, first: int, checksums: Seq[int]) -> None:
        """Cache blocks that came from L2, verified, into the request's slots."""
        for block, checksum in enumerate(checksums, first):
            seq.slots[block] = self._publish_one(seq, block, checksum)
        end = first + len(checksums)
        seq.published = end
        seq.computed = end * self.layout.block_tokens
        self._counters["l2_blocks_restored"] += len(checksums)
        self._restored_tokens += len(checksums) * self.layout.block_tokens
        self._tell(seq, 1, first, end)

    # ------------------------------------------------------------ L2

    def touch(self, seq: Sequence) -> None:
        """A request uses its context: what L2 has of it is not the oldest any more."""
        if self.pool is not None:
            self.pool.order.access(_branch_of(seq), seq.keys, self._clock.now_s())

    def settle(self, seq: Sequence) -> None:
        """A request has ended: its branch pauses from now on."""
        branch = _branch_of(seq)
        if self.pool is None:
            return
        seq.settles = bool(seq.slots_in_use)
        if seq.settles:
            return  # once L2 has its last blocks: they belong to its branch too
        now_s = self._clock.now_s()
        self.pool.order.access(branch, seq.keys, now_s)
        if branch is not None:
            self.pool.order.settle(branch, now_s)

    def is_being_kept(self, key: BlockKey) -> bool:
        """Whether the block is on its way from L1 to L2."""
        return key in self._keeping

    def _keep(self, seq: Sequence, first: int, checksums: Seq[int]) -> None:
        """Queue the copies of the request's blocks [first, ...) that L2 lacks."""
        assert self.pool is not None
        assert self._copier is not None
        wanted = [
            (block, checksum)
            for block, checksum in enumerate(checksums, first)
            if self.pool.find(seq.keys[block]) is None and seq.keys[block] not in self._keeping
        ]
        free = self._limits.queue_blocks - self._copier.blocks_under_way
        room = min(free, self.pool.room())
        if len(wanted) > room:
            refused = "l2_write_skipped" if room == free else "l2_write_no_room"
            self._counters[refused] += len(wanted) - max(room, 0)
            wanted = wanted[: max(room, 0)]
        slots = self.pool.take(len(wanted), self._clock.now_s()) if wanted else None
        if not slots:
            return
        items = []
        for (block, checksum), slot in zip(wanted, slots, strict=True):
            key = seq.keys[block]
            self._keeping.add(key)
            items.append(Keep(seq.slots[block], slot, self.pool.header(slot, key, checksum)))
        blocks = [block for block, _ in wanted]
        self.hold_slots(seq, len(items))
        self._copier.submit(items, lambda results: self._kept(seq, blocks, items, results))

    def _kept(
        self,
        seq: Sequence,
        blocks: Seq[int],
        items: Seq[Keep],
        results: Seq[Checked],
    ) -> None:
        """Copies into L2 are done."""
        assert self.pool is not None
        keys = seq.keys  # by now there may be more, never others
        run: list[int] = []
        for block, item, result in zip(blocks, items, results, strict=True):
            key = keys[block]
            self._keeping.remove(key)
            parent = keys[block - 1] if block else seq.start.root_key
            if not self.pool.hold(item.l2_slot, key, parent, block, result.checksum):
                continue
            self.inherit_class(key)
            if run and block != run[-1] + 1:
                self._tell(seq, 2, run[0], run[-1] + 1)
                run = []
            run.append(block)
        if run:
            self._tell(seq, 2, run[0], run[-1] + 1)
        self._counters["l2_blocks_written"] += len(items)
        self._counters["l2_bytes_written"] += len(items) * self.pool.block_bytes
        self.let_go_slots(seq, len(items))

    def inherit_class(self, key: BlockKey) -> None:
        """Both tiers of a block on a node have one class, and the control plane says it once."""
        above = self.l1.find(key)
        if self.pool is not None and above is not None and above.epoch:
            self.pool.classify(above.epoch, (key,), above.told)

    # ------------------------------------------------------------ what is told

    def tell_stored(
        self, request_id: str, tier: int, parent: BlockKey, keys: Seq[BlockKey]
    ) -> None:
        """Blocks are readable in a tier from now on; what left before is told first."""
        self.announce_evictions()
        self._outlet.fact(KvStored(request_id, tier, parent, b"".join(keys)))

    def announce_evictions(self) -> None:
        """Tell what left each tier since the last call; before anything new is told, so that a
        block that left and came back is known as here."""
        for ref_class, count in zip(RefClass, self.l1.evicted_by_class, strict=True):
            self._counters[f"l1_evicted_{ref_class.name.lower()}"] = count
        if self.pool is not None:
            for ref_class, count in zip(RefClass, self.pool.evicted_by_class, strict=True):
                self._counters[f"l2_evicted_{ref_class.name.lower()}"] = count
        evicted_l1 = self.l1.take_evicted()
        evicted_l2 = self.pool.take_evicted() if self.pool is not None else []
        for tier, keys in ((1, evicted_l1), (2, evicted_l2)):
            if keys:
                self._outlet.fact(KvEvicted(tier, b"".join(keys)))
        for key in evicted_l1:
            if not self.l1.peek((key,)):  # it may be back already
                self._roots.pop(key, None)

    def reclassify(self, epoch: int, ref_class: RefClass, keys: bytes) -> None:
        """The control plane's word on who needs the blocks of one chain."""
        ends = range(KEY_BYTES, len(keys) + 1, KEY_BYTES)
        chain = [keys[end - KEY_BYTES : end] for end in ends]
        # Deepest first: a block's class follows from those below it, so each changes once.
        self._counters["blocks_reclassified"] += self.l1.classify(epoch, chain[::-1], ref_class)
        if self.pool is not None:
            self.pool.classify(epoch, chain, ref_class)

    def forget_classes(self) -> None:
        """Another life of the control plane counts references anew."""
        self.l1.forget_classes()
        if self.pool is not None:
            self.pool.forget_classes()

    def take_restored_tokens(self) -> int:
        """Tokens copied from L2 since the last call (t_rst of Eq. 1)."""
        restored, self._restored_tokens = self._restored_tokens, 0
        return restored

    def gauges(self) -> dict[str, float]:
        """Present sizes, for heartbeats."""
        found: dict[str, float] = {
            "l1_quarantined_blocks": self.l1.quarantined_blocks,
            **{f"l1_class{c}_blocks": n for c, n in enumerate(self.l1.classes())},
        }
        if self.pool is not None and self._copier is not None:
            found |= {
                "l2_quarantined_blocks": self.pool.resting_blocks,
                "l2_pins": self.pool.pins,
                "l2_write_queue_blocks": len(self._keeping),
                "l2_dropped_corrupt": self.pool.dropped_corrupt,
                **{f"l2_class{c}_blocks": n for c, n in enumerate(self.pool.classes())},
            }
        return found

    # ------------------------------------------------------------ questions

    def inventory(self) -> list[InventoryBlock]:
        """Every cached block, ancestors first, L1's with the checksum of its bytes as they are
        now; L2's (tier 2) with the one they had when they were kept: they are verified when
        they are read."""
        held = sorted(self.pool.blocks(), key=lambda block: block.depth) if self.pool else []
        return [
            InventoryBlock(block.key, 2, block.pins, block.checksum, block.parent)
            for block in held
        ] + [
            InventoryBlock(
                key=block.key,
                tier=1,
                references=block.pins,
                checksum=self.pages.checksum(block.slot),
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
            if self.pages.checksum(block.slot) != block.checksum
        ]
        return problems + (self.pool.check_integrity() if self.pool else [])

    # ------------------------------------------------------------ inside

    def _publish_one(self, seq: Sequence, block: int, checksum: int) -> Slot:
        key = seq.keys[block]
        if not block:
            self._roots[key] = seq.start.root_key
        below = self.pool.find(key) if self.pool is not None else None
        word = ClassWord(below.epoch, below.told) if below is not None else NO_WORD
        above = seq.keys[block - 1] if block else b""
        return self.l1.publish(seq.slots[block], key, above, checksum, word)

    def _tell(self, seq: Sequence, tier: int, first: int, end: int) -> None:
        if end > first:
            parent = seq.keys[first - 1] if first else seq.start.root_key
            self.tell_stored(seq.request_id, tier, parent, seq.keys[first:end])


def _branch_of(seq: Sequence) -> tuple[str, str] | None:
    return (seq.start.tenant, seq.start.branch) if seq.start.branch else None
