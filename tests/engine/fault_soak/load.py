"""Requests in flight: who may be asked, what is owed for each, and what came."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from evctl.core.kv import FetchPiece
from evctl.wire.messages import FetchAhead
from tests.engine.driver import Result
from tests.engine.fault_soak.cluster import NAMES, Cluster
from tests.engine.fault_soak.corpus import OUTPUT_TOKENS, Turn

WIDTH = 7
DEADLINE_S = 25.0
"""Above the sum of the engines' limits and of the work queued before a request, by far."""
CANCELLED, AT_ANOTHER_NODE, STALE_HINTS, AHEAD, OLD = 0.06, 0.5, 0.15, 0.05, 0.2
"""Shares of the requests. OLD: some of the last REMEMBERED, whose blocks go first where room is
needed: a peer may ask for them at the very moment."""
REMEMBERED = 120


@dataclass
class Live:
    """A request that has not ended. lost: the node that was killed under it."""

    result: Result
    turn: Turn
    prefill: str
    decode: str
    deadline_s: float
    cancel_at: int | None
    cancelled: bool = False
    lost: str = ""


@dataclass
class Tally:
    """What came of the requests of some rounds. wrong, hangs, leaks: violations in words."""

    requests: int = 0
    cancelled: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    served: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def violations(self) -> list[str]:
        return [*self.wrong, *self.hangs, *self.leaks]


class Load:
    """Keeps WIDTH requests in flight. Every so often the tenant changes, and with it all keys:
    then nothing is cached anywhere, and contexts grow anew."""

    def __init__(self, cluster: Cluster, corpus: list[Turn], seed: int) -> None:
        self._cluster = cluster
        self._corpus = corpus
        self._rng = random.Random(seed)
        self._turns = self._next_turns()
        self._asked: deque[tuple[str, Turn]] = deque(maxlen=REMEMBERED)
        self._tenants = 0
        self._names = 0
        self.live: list[Live] = []
        self.tally = Tally()

    def step(self, timeout_s: float = 0.01, *, submit: bool = True) -> None:
        """Ask for more, hear what came, and judge what is over."""
        cluster = self._cluster
        while submit and len(self.live) < WIDTH:
            self._submit()
        cluster.pump(timeout_s)
        now_s = time.monotonic()
        for live in list(self.live):
            tokens = len(live.result.tokens)
            if live.cancel_at is not None and tokens >= live.cancel_at and not live.cancelled:
                live.cancelled = True
                cluster.cancel(live.result.request_id)
            if live.result.finish is not None:
                self._over(live)
            elif now_s > live.deadline_s and self.owed(live):
                self._end(live)
                self.tally.hangs.append(
                    f"{live.result.request_id} {live.prefill}->{live.decode} has {tokens} tokens"
                )
        for request_id in cluster.wrong_repeats:
            self.tally.wrong.append(f"{request_id}: a repeated token is another")
        cluster.wrong_repeats.clear()

    def drain(self, timeout_s: float = DEADLINE_S + 5.0) -> None:
        """Until nothing is owed. What died with a node is given up."""
        end_s = time.monotonic() + timeout_s
        while any(self.owed(live) for live in self.live) and time.monotonic() < end_s:
            self.step(submit=False)

    def give_up_lost(self) -> None:
        """All is quiet: what has not come by now of requests that a node took with it will not."""
        for live in list(self.live):
            assert not self.owed(live)
            self._end(live)
            self.tally.lost += 1
            self._compare(live)

    def killed(self, name: str) -> None:
        for live in self.live:
            if name in (live.prefill, live.decode):
                live.lost = name

    def owed(self, live: Live) -> bool:
        """Whether a node that lives has the request: the one that computed it until it is handed
        over, the other one from then on."""
        if not live.lost:
            return True
        if live.prefill == live.decode:
            return False
        if live.lost == live.prefill:
            return live.decode in self._cluster.speakers.get(live.result.request_id, ())
        return live.result.request_id not in self._cluster.transferred

    # ------------------------------------------------------------ inside

    def _next_turns(self) -> Iterator[tuple[str, Turn]]:
        """Tenant after tenant: turn by turn through the branches, some asked a second time."""
        while True:
            self._tenants += 1
            tenant = f"t{self._tenants}"
            by_number: dict[int, list[Turn]] = {}
            for turn in self._corpus:
                by_number.setdefault(turn.number, []).append(turn)
            for number in sorted(by_number):
                turns = by_number[number]
                for turn in self._rng.sample(turns, len(turns)):
                    yield tenant, turn
                    if self._rng.random() < 0.5:
                        yield tenant, turn

    def _submit(self) -> None:
        cluster, rng = self._cluster, self._rng
        up = [name for name in NAMES if name not in cluster.down]
        old = bool(self._asked) and rng.random() < OLD
        tenant, turn = rng.choice(self._asked) if old else next(self._turns)
        self._asked.append((tenant, turn))
        prefill = rng.choice(up)
        decode = rng.choice(up) if rng.random() < AT_ANOTHER_NODE else prefill
        self._names += 1
        request_id = f"q{self._names}"
        fetch = self._hints(turn, tenant, prefill)
        cluster.submit(
            turn.prompt,
            prefill=prefill,
            decode=decode,
            request_id=request_id,
            tenant=tenant,
            fetch=fetch,
            max_tokens=OUTPUT_TOKENS,
        )
        self.tally.requests += 1
        cancel = rng.choice((0, 1, 3)) if rng.random() < CANCELLED else None
        deadline_s = time.monotonic() + DEADLINE_S
        result = cluster.results[request_id]
        self.live.append(Live(result, turn, prefill, decode, deadline_s, cancel))

    def _hints(self, turn: Turn, tenant: str, prefill: str) -> list[FetchPiece]:
        """What the directory knows, or sometimes what is not so; at times another node is told
        to fetch ahead."""
        cluster, rng = self._cluster, self._rng
        others = [name for name in NAMES if name != prefill]
        if rng.random() < STALE_HINTS:
            rng.shuffle(others)
            keys = cluster.keys_of(turn.prompt, tenant)
            return [FetchPiece(0, len(keys), tuple(others))]
        if rng.random() < AHEAD:
            other = rng.choice(others)
            keys = cluster.keys_of(turn.prompt, tenant)
            pieces = tuple(cluster.pieces(turn.prompt, tenant, other))
            root = cluster.root_of(tenant)
            cluster.send(other, FetchAhead(f"f{self._names}", root, b"".join(keys), pieces))
        return cluster.pieces(turn.prompt, tenant, prefill)

    def _end(self, live: Live) -> None:
        self.live.remove(live)

    def _over(self, live: Live) -> None:
        self._end(live)
        if live.result.finish == "cancelled" and live.cancelled:
            self.tally.cancelled += 1
        elif live.result.finish != "length":
            self.tally.wrong.append(
                f"{live.result.request_id} ended with {live.result.finish}: {live.result.error}"
            )
        else:
            self.tally.served[live.prefill, live.decode] += 1
        self._compare(live)

    def _compare(self, live: Live) -> None:
        """What came must be right, and all of it unless the request was cut short."""
        result, answer = live.result, list(live.turn.answer)
        whole = result.finish == "length"
        expected = answer if whole else answer[: len(result.tokens)]
        if result.gaps and live.lost == live.prefill:
            return  # the first token was on its way from a node that was killed
        if result.tokens != expected or result.gaps:
            self.tally.wrong.append(
                f"{result.request_id} {live.prefill}->{live.decode}: {result.tokens}, "
                f"not {expected}; {result.gaps} gaps"
            )
