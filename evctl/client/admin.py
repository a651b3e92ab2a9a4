"""AdminClient: typed calls of the admin API."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from evctl.client.answers import decoded, no_answer, nobody_listens, refusal
from evctl.client.watching import SILENCE_S, Stale, StreamLostError, follow
from evctl.core.kv_status import (
    BranchDetail,
    BranchEnd,
    BranchPage,
    BranchPlace,
    BranchTree,
    KvBlock,
    KvCheck,
    KvSummary,
)
from evctl.core.status import ClusterStatus, EventRecord, SplitChange, WatchFrame

if TYPE_CHECKING:  # httpx: 100 ms at run time, paid by the first call
    import httpx

    from evctl.client.why import WhyCalls

TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 330.0
"""An audit looks at everything; the control plane gives up after 300 s."""
SEARCH_TIMEOUT_S: Final = 30.0
"""Of what looks through all branches or blocks, in slices."""
MAX_LINE_BYTES: Final = 32_000_000


class AdminClient:
    """One cluster's admin API. Calls may come from several threads; each ends in its timeout.

    Every call raises UnreachableError when nobody listens (EV-1401) or answers in time
    (EV-1403), EvctlError (EV-1402) for an answer it cannot read, and otherwise what the
    control plane says: UsageError, ConflictError, RefusedError.
    """

    def __init__(
        self,
        socket_path: Path,
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.address = str(socket_path)
        self._timeout_s = timeout_s
        self._pause = pause
        self._jitter = jitter
        self._silence_s = silence_s
        self._http: httpx.Client | None = None

    def status(self) -> ClusterStatus:
        """The cluster now."""
        return decoded(self._call("GET", "status"), ClusterStatus, "status")

    def events(self, *, since: int = 0, limit: int = 200) -> tuple[EventRecord, ...]:
        """Events with a sequence above `since`, oldest first."""
        content = self._call("GET", "events", query={"since": since, "limit": limit})
        return decoded(content, tuple[EventRecord, ...], "events")

    def set_split(
        self,
        split: str,
        *,
        by: str,
        reason: str = "",
        generation: int | None = None,
        plan: bool = False,
        force: bool = False,
        for_s: float | None = None,
    ) -> SplitChange:
        """Change the split and hold it, for for_s seconds or until somebody releases it; with
        plan, only say what would move.

        generation: refuse (ConflictError) when somebody wrote since then.
        """
        body = {
            "split": split,
            "by": by,
            "reason": reason,
            "generation": generation,
            "plan": plan,
            "force": force,
            **({} if for_s is None else {"for_s": for_s}),
        }
        return decoded(self._call("PUT", "split", body), SplitChange, "split")

    def set_mode(
        self,
        mode: str,
        *,
        by: str,
        reason: str = "",
        generation: int | None = None,
        for_s: float | None = None,
    ) -> ClusterStatus:
        """mode: auto, hold (for for_s seconds, or until somebody releases it) or advise.

        generation: refuse (ConflictError) when somebody wrote since then.
        """
        body: dict[str, Any] = {"mode": mode, "by": by, "reason": reason}
        if generation is not None:
            body["generation"] = generation
        if for_s is not None:
            body["for_s"] = for_s
        return decoded(self._call("PUT", "mode", body), ClusterStatus, "mode")

    @property
    def why(self) -> WhyCalls:
        """Calls about the planner, and why something is as it is."""
        # Not at import: few commands ask, and its values bring half of core along.
        from evctl.client.why import WhyCalls

        return WhyCalls(self._call, segment)

    # ------------------------------------------------------------ branches and blocks

    def kv_check(self) -> KvCheck:
        """A full audit of every count. EvctlError (EV-1357) when it does not come to an end."""
        content = self._call("GET", "kv/check", timeout_s=CHECK_TIMEOUT_S)
        return decoded(content, KvCheck, "kv/check")

    def kv_summary(self) -> KvSummary:
        """Sizes, references, blocks by node, and what was ignored so far."""
        return decoded(self._call("GET", "kv/summary"), KvSummary, "kv/summary")

    def kv_block(self, key: str) -> KvBlock:
        """A block by its key or the first digits of it, 8 at least. Raises NotFoundError
        (EV-1355), UsageError (EV-1356: several)."""
        name = f"kv/blocks/{segment(key)}"
        return decoded(self._call("GET", name, timeout_s=SEARCH_TIMEOUT_S), KvBlock, "kv/blocks")

    def branches(
        self,
        *,
        tenant: str | None = None,
        state: str | None = None,
        kind: str | None = None,
        node: str | None = None,
        prefix: str = "",
        sort: str = "name",
        after: BranchPlace | None = None,
        limit: int = 100,
    ) -> BranchPage:
        """A page of branches, at most 1,000; the next one begins after its `next`."""
        asked: dict[str, str | int | float | None] = {
            "tenant": tenant,
            "state": state,
            "kind": kind,
            "node": node,
            "prefix": prefix or None,
            "sort": sort,
            "limit": limit,
        }
        if after is not None:
            asked |= {
                "after_figure": after.figure,
                "after_tenant": after.tenant,
                "after_branch": after.branch,
            }
        query = {name: value for name, value in asked.items() if value is not None}
        patience_s = SEARCH_TIMEOUT_S if self._timeout_s >= TIMEOUT_S else self._timeout_s
        content = self._call("GET", "branches", query=query, timeout_s=patience_s)
        return decoded(content, BranchPage, "branches")

    def branch(self, tenant: str, branch: str) -> BranchDetail:
        """One branch with its holders. Raises NotFoundError (EV-1354)."""
        content = self._call("GET", _path(tenant, branch), timeout_s=SEARCH_TIMEOUT_S)
        return decoded(content, BranchDetail, "branch")

    def branch_tree(self, tenant: str, branch: str) -> BranchTree:
        """Its ancestors and descendants. Raises NotFoundError (EV-1354)."""
        content = self._call("GET", _path(tenant, branch, "tree"), timeout_s=SEARCH_TIMEOUT_S)
        return decoded(content, BranchTree, "tree")

    def end_branch(self, tenant: str, branch: str, *, by: str, reason: str = "") -> BranchEnd:
        """End it, once. Raises NotFoundError (EV-1354) for one that nobody has heard of."""
        content = self._call("POST", _path(tenant, branch, "end"), {"by": by, "reason": reason})
        return decoded(content, BranchEnd, "end")

    def stop(self, *, drain: bool) -> None:
        """Ask the control plane to end; with drain, once nothing is in flight."""
        self._call("POST", "stop", {"drain": drain})

    def call_off_stop(self) -> bool:
        """Have requests taken again after `stop(drain=True)`. False when it is too late."""
        content = self._call("DELETE", "stop")
        return not decoded(content, dict[str, bool], "stop").get("stopping", True)

    def watch(self) -> Iterator[WatchFrame | Stale]:
        """Frames for ever: a snapshot, then what changes; a Stale at each loss and failed try.

        Never raises for a cluster that cannot be reached. Each call is a stream of its own.
        """
        return follow(self._stream, self._pause, self._jitter)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self,
        method: str,
        name: str,
        body: dict[str, Any] | None = None,
        query: Mapping[str, str | int | float] | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        timeout_s = timeout_s or self._timeout_s
        if self._http is None:
            self._http = self._new_http(self._timeout_s)
        self._knock()
        with self._named_failures(name, timeout_s):
            answer = self._http.request(
                method, f"/admin/v1/{name}", json=body, params=query, timeout=timeout_s
            )
        if answer.status_code >= 400:
            raise refusal(answer.status_code, answer.content, name)
        return answer.content

    def _stream(self) -> Iterator[WatchFrame]:
        """One connection's frames."""
        self._knock()
        with (
            self._named_failures("watch", self._silence_s),
            self._new_http(self._silence_s) as http,
            http.stream("GET", "/admin/v1/watch") as answer,
        ):
            if answer.status_code >= 400:
                raise refusal(answer.status_code, answer.read(), "watch")
            for line in _lines(answer.iter_bytes()):
                yield decoded(line, WatchFrame, "watch")

    def _knock(self) -> None:
        """Raise UnreachableError unless somebody listens. httpx would say so too, but leave the
        socket of each failed try open (httpcore 1.0), and a watch tries for ever."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(self._timeout_s)
            try:
                probe.connect(self.address)
            except OSError as error:
                why = error.strerror or str(error)
                raise nobody_listens(self.address, why.lower()) from error

    def _new_http(self, timeout_s: float) -> httpx.Client:
        _skip_httpx_command_line()
        import httpx

        # verify: there is no TLS on a unix socket, and reading certificates costs 40 ms.
        transport = httpx.HTTPTransport(uds=self.address, verify=False)
        # The host is a name for the Host header only: the transport dials the socket.
        return httpx.Client(transport=transport, base_url="http://evctl", timeout=timeout_s)

    @contextmanager
    def _named_failures(self, call: str, timeout_s: float) -> Iterator[None]:
        _skip_httpx_command_line()
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            raise nobody_listens(self.address, str(error)) from error
        except httpx.TimeoutException as error:
            raise no_answer(self.address, call, timeout_s) from error
        except httpx.TransportError as error:
            raise nobody_listens(self.address, f"the connection broke: {error}") from error


def segment(name: str) -> str:
    """A name as one segment of a path, dots too: `..` would be a way up."""
    return quote(name, safe="").replace(".", "%2E")


def _path(tenant: str, branch: str, what: str = "") -> str:
    path = f"branches/{segment(tenant)}/{segment(branch)}"
    return f"{path}/{what}" if what else path


def _skip_httpx_command_line() -> None:
    """Keep httpx from loading its own command line: that imports rich, click and pygments, which
    cost more than the library itself. It copes with their absence."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Non-empty lines. Raises StreamLostError rather than keep an endless one."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > MAX_LINE_BYTES:
            raise StreamLostError(f"a line has more than {MAX_LINE_BYTES} bytes")
