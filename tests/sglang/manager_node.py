"""One node with two transfer managers over one engine and one set of KV buffers.

Started by two_managers.py in .venv-sglang, one process a node, without a scheduler: SGLang's own
MooncakeKVManager for each phase, its senders, receivers, bootstrap server and metadata buffers.
Orders come in as JSON lines on stdin, answers go out as JSON lines on stdout.

Both phases take their slots from the same pool and are stepped by one thread, as the engine's loop
does. What a room carries follows from its number alone, so that the receiving side checks every
byte without asking the sending one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVReceiver, KVTransferError
from sglang.srt.disaggregation.mooncake.conn import (
    MooncakeKVBootstrapServer,
    MooncakeKVManager,
    MooncakeKVReceiver,
    MooncakeKVSender,
)
from sglang.srt.disaggregation.utils import DisaggregationMode, MetadataBuffers
from sglang.srt.distributed.device_communicators import mooncake_transfer_engine as engines
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs

HOST = "127.0.0.1"
LAYERS = 4
SLOTS = 4096
ROW_BYTES = 512
AUX_ROWS = 128
CHUNK_SLOTS = 48
RUN_SLOTS = 8  # slots are handed out in runs, scattered over the pool
CANARY = 0xA5
NAMES = {value: name for name, value in vars(KVPoll).items() if isinstance(value, int)}


class SharedBuffersManager(MooncakeKVManager):
    """A manager that leaves registration to its node: two of them have the KV buffers in common.

    SGLang 0.5.23 registers in the constructor and looks at no result.
    """

    def register_buffer_to_engine(self) -> None: ...

    def deregister_buffer_to_engine(self) -> None: ...


class LateManager(SharedBuffersManager):
    """Registers what its engine does not know yet, and takes all of its own back on teardown.

    What a fix of the registration alone would do.
    """

    known: ClassVar[set[tuple[int, int]]] = set()

    def register_buffer_to_engine(self) -> None:
        new = [region for region in self._registerable_regions() if region not in self.known]
        pointers, lengths = zip(*new, strict=True)
        assert self.engine.batch_register(list(pointers), list(lengths)) == 0
        self.known.update(new)

    def deregister_buffer_to_engine(self) -> None:
        MooncakeKVManager.deregister_buffer_to_engine(self)


MANAGERS = {
    "as-is": MooncakeKVManager,
    "decode-first": MooncakeKVManager,
    "shared": SharedBuffersManager,
    "late": LateManager,
}


def contents(room: int, slots: int) -> np.ndarray:
    """What the room's KV is: [layer and plane, slot, byte]."""
    return np.random.default_rng(room).integers(
        0, 256, (2 * LAYERS, slots, ROW_BYTES), dtype=np.uint8
    )


def slots_of(room: int) -> int:
    return RUN_SLOTS * (1 + room % 18)


class Node:
    def __init__(self, model: str, case: str, port: int) -> None:
        self._port = port
        self._server_args = ServerArgs(
            model_path=model,
            device="cpu",
            skip_tokenizer_init=True,
            disaggregation_mode="decode",
            disaggregation_transfer_backend="mooncake_tcp",
            disaggregation_bootstrap_port=port,
            disaggregation_decode_enable_radix_cache=True,
            host=HOST,
        )
        publish(self._server_args, role="scheduler", ranks=SpawnRanks(0, None, 0))
        get_parallel().override_permanently(pp_group=None)
        # One a process by SGLang's own rule: a module-level singleton.
        self.engine = engines.init_mooncake_transfer_engine(hostname=HOST, gpu_id=0)
        self.registered: list[dict[str, int]] = []
        self._watch_registration()
        self._kv = [
            torch.full((SLOTS, ROW_BYTES), CANARY, dtype=torch.uint8) for _ in range(2 * LAYERS)
        ]
        self._aux = {mode: self._metadata() for mode in ("prefill", "decode")}
        self._bootstrap = MooncakeKVBootstrapServer(HOST, port)
        time.sleep(0.3)
        if case == "shared":
            self._register_once()
        modes = [DisaggregationMode.PREFILL, DisaggregationMode.DECODE]
        if case == "decode-first":
            modes.reverse()
        both = {mode.value: self._manager(MANAGERS[case], mode) for mode in modes}
        self.prefill, self.decode = both["prefill"], both["decode"]
        self._free = list(range(0, SLOTS, RUN_SLOTS))
        random.Random(port).shuffle(self._free)
        self._free_aux = {mode: list(range(AUX_ROWS)) for mode in self._aux}
        self._sending: dict[int, dict[str, Any]] = {}
        self._receiving: dict[int, dict[str, Any]] = {}
        self._ended: list[dict[str, Any]] = []
        self._quarantine: list[int] = []

    def _metadata(self) -> MetadataBuffers:
        return MetadataBuffers(AUX_ROWS, 16, torch.float32, max_sampling_mask_tokens=1)

    def _watch_registration(self) -> None:
        """Keep what every registration returned: SGLang does not look at it."""
        register, deregister = self.engine.batch_register, self.engine.batch_deregister

        def watched(pointers: list[int], lengths: list[int]) -> int:
            result = register(pointers, lengths)
            self.registered.append({"regions": len(pointers), "result": result})
            return result

        def watched_back(pointers: list[int]) -> int:
            result = deregister(pointers)
            self.registered.append({"regions": -len(pointers), "result": result})
            return result

        self.engine.batch_register, self.engine.batch_deregister = watched, watched_back

    def _register_once(self) -> None:
        regions = [(kv.data_ptr(), kv.nbytes) for kv in self._kv]
        for aux in self._aux.values():
            pointers, lengths, _ = aux.get_buf_infos()
            regions += zip(pointers, lengths, strict=True)
        pointers, lengths = zip(*regions, strict=True)
        assert self.engine.batch_register(list(pointers), list(lengths)) == 0

    def _manager(self, manager: type, mode: DisaggregationMode) -> MooncakeKVManager:
        args = KVArgs()
        args.engine_rank = args.pp_rank = args.system_dp_rank = args.gpu_id = 0
        args.rust_http_port = None
        args.kv_cache_dtype_str = "uint8"
        args.kv_data_ptrs = [kv.data_ptr() for kv in self._kv]
        args.kv_data_lens = [kv.nbytes for kv in self._kv]
        args.kv_item_lens = [kv[0].nbytes for kv in self._kv]
        args.kv_layer_ids = []
        args.kv_head_num = args.total_kv_head_num = 1
        args.page_size = 1
        args.prefill_start_layer, args.prefill_end_layer = 0, LAYERS
        aux = self._aux[mode.value].get_buf_infos()
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = aux
        args.state_types, args.state_data_ptrs, args.state_data_lens = [], [], []
        args.state_item_lens, args.state_layer_ids, args.state_dim_per_tensor = [], [], []
        args.ib_device = ""
        return manager(args, mode, self._server_args, False)

    # ------------------------------------------------------------------ orders

    def describe(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "session": self.engine.get_session_id(),
            "same_engine": self.prefill.engine is self.decode.engine,
            "manager_ports": [self.prefill.rank_port, self.decode.rank_port],
            "registered": self.registered,
        }

    def run(self, send: list[int], receive: list[int], peer_port: int, limit_s: float) -> dict:
        """Take all rooms through both phases at once, at most 64 in flight each way."""
        sending, receiving = send[::-1], receive[::-1]
        end_s = time.monotonic() + limit_s
        self._ended = []
        start_s = time.monotonic()
        while sending or receiving or self._sending or self._receiving:
            while receiving and len(self._receiving) < 64 and self._may_receive(receiving[-1]):
                self._begin_receiving(receiving.pop(), peer_port)
            while sending and len(self._sending) < 64 and self._fits(sending[-1]):
                self._begin_sending(sending.pop())
            moved = self._step_sending() + self._step_receiving()
            if time.monotonic() > end_s:
                for rooms, phase in ((self._sending, "send"), (self._receiving, "receive")):
                    for room in list(rooms):
                        state = NAMES[rooms[room]["end"].poll()]
                        self._end(phase, rooms, room, f"still {state}")
                break
            if not moved:
                time.sleep(0.001)
        outcomes: dict[str, int] = {}
        for ended in self._ended:
            key = f"{ended['phase']}: {ended['outcome']}"
            outcomes[key] = outcomes.get(key, 0) + 1
        received = [e for e in self._ended if e["phase"] == "receive" and e["outcome"] == "right"]
        return {
            "outcomes": outcomes,
            "seconds": round(time.monotonic() - start_s, 3),
            "bytes_in": sum(slots_of(e["room"]) for e in received) * 2 * LAYERS * ROW_BYTES,
            "free_slots_touched": self._free_slots_touched(),
        }

    def teardown(self, phase: str) -> dict[str, Any]:
        getattr(self, phase).teardown()
        if phase == "decode":
            CommonKVReceiver.close_all_sockets()
        return self.describe()

    def lift_quarantine(self) -> dict[str, Any]:
        """The peer is dead: nobody can write to what its failed rooms held."""
        lifted, self._quarantine = self._quarantine, []
        for plane in self._kv:
            index = (
                torch.tensor(lifted, dtype=torch.long)[:, None] + torch.arange(RUN_SLOTS)
            ).flatten()
            plane[index] = CANARY
        self._free.extend(lifted)
        return {"slots": RUN_SLOTS * len(lifted)}

    # ------------------------------------------------------------------ one room's life

    def _fits(self, room: int) -> bool:
        return len(self._free) >= slots_of(room) // RUN_SLOTS

    def _may_receive(self, room: int) -> bool:
        """Receiving leaves half of the pool to sending.

        Else two nodes whose pools are taken by what they wait for from each other wait for ever.
        """
        held = sum(len(entry["slots"]) for entry in self._receiving.values())
        return held + slots_of(room) <= SLOTS // 2 and self._fits(room)

    def _take(self, room: int, phase: str) -> dict[str, Any]:
        starts = [self._free.pop() for _ in range(slots_of(room) // RUN_SLOTS)]
        slots = [start + i for start in starts for i in range(RUN_SLOTS)]
        return {"slots": np.array(slots, dtype=np.int32), "aux": self._free_aux[phase].pop()}

    def _begin_sending(self, room: int) -> None:
        entry = self._take(room, "prefill")
        for plane, rows in zip(self._kv, contents(room, len(entry["slots"])), strict=True):
            plane[torch.from_numpy(entry["slots"]).long()] = torch.from_numpy(rows)
        self._aux["prefill"].output_ids[entry["aux"], 0] = room
        entry["end"] = MooncakeKVSender(self.prefill, f"{HOST}:{self._port}", room)
        entry["sent"] = None
        self._sending[room] = entry

    def _step_sending(self) -> int:
        moved = 0
        for room, entry in list(self._sending.items()):
            state = entry["end"].poll()
            if state == KVPoll.WaitingForInput and entry["sent"] is None:
                entry["end"].init(len(entry["slots"]), entry["aux"])
                entry["sent"] = 0
            if entry["sent"] is not None and entry["sent"] < len(entry["slots"]):
                # In chunks, as a chunked prefill does it.
                chunk = entry["slots"][entry["sent"] : entry["sent"] + CHUNK_SLOTS]
                entry["end"].send(chunk)
                entry["sent"] += len(chunk)
                moved += 1
            if state in (KVPoll.Success, KVPoll.Failed):
                outcome = NAMES[state] if state == KVPoll.Success else self._why(entry)
                entry["end"].clear()
                self._end("send", self._sending, room, outcome)
                moved += 1
        return moved

    def _begin_receiving(self, room: int, peer_port: int) -> None:
        address = f"{HOST}:{peer_port}"
        entry = self._take(room, "decode")
        self.decode.try_ensure_parallel_info(address)
        receiver = entry["end"] = MooncakeKVReceiver(self.decode, address, room)
        receiver.init(0)
        if receiver.poll() == KVPoll.WaitingForInput:
            receiver.send_metadata(entry["slots"], entry["aux"], decode_prefix_len=0)
        self._receiving[room] = entry

    def _step_receiving(self) -> int:
        moved = 0
        for room, entry in list(self._receiving.items()):
            state = entry["end"].poll()
            if state in (KVPoll.Success, KVPoll.Failed):
                outcome = self._why(entry) if state == KVPoll.Failed else self._judge(room, entry)
                entry["end"].clear()
                self._end("receive", self._receiving, room, outcome)
                moved += 1
        return moved

    def _why(self, entry: dict[str, Any]) -> str:
        try:
            entry["end"].failure_exception()
        except KVTransferError as error:
            # Without the numbers, so that equal reasons count as one.
            return "failed, " + re.sub(r"[0-9][0-9.:]*", "N", error.failure_reason)
        return "failed"

    def _judge(self, room: int, entry: dict[str, Any]) -> str:
        index = torch.from_numpy(entry["slots"]).long()
        got = np.stack([plane[index].numpy() for plane in self._kv])
        want = contents(room, len(entry["slots"]))
        if hashlib.blake2b(got.tobytes()).digest() != hashlib.blake2b(want.tobytes()).digest():
            return "wrong bytes"
        if int(self._aux["decode"].output_ids[entry["aux"], 0]) != room:
            return "wrong metadata"
        return "right"

    def _end(self, phase: str, rooms: dict[int, dict[str, Any]], room: int, outcome: str) -> None:
        entry = rooms.pop(room)
        self._ended.append({"phase": phase, "room": room, "outcome": outcome})
        if outcome not in ("right", "Success"):
            # Somebody may still write there: not used before that is excluded.
            self._quarantine.extend(int(slot) for slot in entry["slots"][::RUN_SLOTS])
            return
        for plane in self._kv:
            plane[torch.from_numpy(entry["slots"]).long()] = CANARY
        self._free.extend(int(slot) for slot in entry["slots"][::RUN_SLOTS])
        self._free_aux["prefill" if phase == "send" else "decode"].append(entry["aux"])

    def _free_slots_touched(self) -> int:
        """Free slots in which a byte is not the canary: somebody wrote where nothing should be."""
        index = (
            torch.tensor(self._free, dtype=torch.long)[:, None] + torch.arange(RUN_SLOTS)
        ).flatten()
        wrong = torch.zeros(len(index), dtype=torch.bool)
        for plane in self._kv:
            wrong |= (plane[index] != CANARY).any(dim=1)
        return int(wrong.sum())


def main() -> None:
    model, case, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # SGLang and Mooncake write to stdout too: answers go through a copy of it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    node = Node(str(Path(model).resolve()), case, port)
    print(json.dumps(node.describe()), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(node, order.pop("order"))(**order)
        print(json.dumps(answer), file=answers)
    os._exit(0)


if __name__ == "__main__":
    main()
