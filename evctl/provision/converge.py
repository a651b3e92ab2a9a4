"""`up`: brings a cluster to what its config says, step by step, through any driver.

Killing it at any moment is safe: each step is repeated until its own check holds. A node that
fails does not keep the others from starting. An interrupt ends it after the step it is in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from evctl.config.settings import cluster_flag
from evctl.core.errors import EvctlError, ExitCode, UnreachableError
from evctl.core.status import ClusterStatus, NodeStatus, Refusal
from evctl.provision.driver import CONTROL, ClusterDriver, UnitState
from evctl.provision.plan import Change, Step, lost_nodes, plan_up, port_obstacle

if TYPE_CHECKING:  # the schema costs 60 ms, and only `up` reads it
    from evctl.config.cluster import ClusterConfig

JOIN_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.1


class ClusterView(Protocol):
    """What `up` asks of a running control plane; the admin client is one."""

    def status(self) -> ClusterStatus: ...


class Report(msgspec.Struct, frozen=True):
    """One line of progress. state: begun, note, done or failed."""

    unit: str
    step: Step
    text: str
    state: str


Tell = Callable[[Report], None]


class UpResult(msgspec.Struct, frozen=True):
    """changed: what was done, in order. failed: node -> why. status: the cluster at the end."""

    changed: tuple[Change, ...]
    failed: dict[str, str]
    status: ClusterStatus | None
    interrupted: bool = False
    timed_out: bool = False

    @property
    def serves(self) -> bool:
        """Whether any node is in."""
        return self.status is not None and any(n.state == "ok" for n in self.status.nodes)

    @property
    def exit_code(self) -> ExitCode:
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.failed:
            return ExitCode.PARTIAL if self.serves else ExitCode.FAILED
        return ExitCode.TIMED_OUT if self.timed_out else ExitCode.DONE


class _InterruptedError(Exception):
    """The user asked to stop between two steps."""


class Convergence:
    """One run of `up`.

    connect: the admin API at a socket. interrupted: whether to stop after the current step.
    """

    def __init__(
        self,
        driver: ClusterDriver,
        config: ClusterConfig,
        *,
        connect: Callable[[Path], ClusterView],
        tell: Tell = lambda report: None,
        interrupted: Callable[[], bool] = lambda: False,
        join_timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        self._driver = driver
        self._config = config
        self._connect = connect
        self._tell = tell
        self._interrupted = interrupted
        self._join_timeout_s = join_timeout_s
        self._changed: list[Change] = []
        self._failed: dict[str, str] = {}
        self._boots_before: dict[str, str] = {}
        self._refused_before: dict[str, int] = {}
        """Node that was started -> number of the last refusal before that."""
        self._status: ClusterStatus | None = None

    def run(self, only: Collection[str] = ()) -> UpResult:
        """Do what is to be done. Raises EvctlError when nothing can run at all: files, model or
        control plane. What fails on one node is in the result."""
        interrupted = timed_out = False
        try:
            self._common_steps(only)
            self._engine_step(only)
            timed_out = not self._join_step(only)
        except _InterruptedError:
            interrupted = True
        return UpResult(
            tuple(self._changed), dict(self._failed), self._status, interrupted, timed_out
        )

    # ------------------------------------------------------------------ steps

    def _common_steps(self, only: Collection[str]) -> None:
        """Files, model, control plane: nothing works without them."""
        observed = self._driver.observe(self._config)
        obstacle = port_obstacle(self._config, observed, plan_up(self._config, observed, only))
        if obstacle is not None:
            raise obstacle
        for change in self._planned(only, Step.FILES):
            self._do(change, lambda: self._driver.prepare(self._config))
        for change in self._planned(only, Step.MODEL):
            self._do(change, lambda change=change: self._fetch(change))  # type: ignore[misc]
        self._driver.let_control_start()
        for change in self._planned(only, Step.CONTROL):
            self._note_boots()
            if change.action == "restart":
                self._driver.stop(CONTROL, STOP_TIMEOUT_S)
            self._do(change, lambda: self._driver.start_control(self._config))
        self._stop_if_asked()
        self._driver.await_control()

    def _engine_step(self, only: Collection[str]) -> None:
        self._note_boots()
        for change in self._planned(only, Step.ENGINE):
            try:
                self._do(change, lambda change=change: self._engine(change))  # type: ignore[misc]
            except EvctlError as error:
                self._failed[change.unit] = error.why

    def _planned(self, only: Collection[str], step: Step) -> list[Change]:
        """What is to be done in a step, as things are now: an earlier step may have changed it."""
        observed = self._driver.observe(self._config)
        changes = plan_up(self._config, observed, only, lost_nodes(self._status))
        return [change for change in changes if change.step is step]

    def _do(self, change: Change, action: Callable[[], object]) -> None:
        self._stop_if_asked()
        self._tell(Report(change.unit, change.step, f"{change.action}: {change.why}", "begun"))
        try:
            action()
        except EvctlError as error:
            # What ends `up` is told at its end, whole; here it only has its place.
            text = error.why if change.step is Step.ENGINE else error.what
            self._tell(Report(change.unit, change.step, text, "failed"))
            raise
        self._changed.append(change)
        done = {"create": "created", "update": "updated", "stop": "stopped"}
        text = done.get(change.action, f"{change.action}ed")
        self._tell(Report(change.unit, change.step, text, "done"))

    def _fetch(self, change: Change) -> None:
        def say(line: str) -> None:
            self._tell(Report(change.unit, change.step, line, "note"))

        self._driver.fetch_model(self._config, say)

    def _engine(self, change: Change) -> None:
        if change.action in ("restart", "stop"):
            self._driver.stop(change.unit, STOP_TIMEOUT_S)
        if change.action != "stop":
            refusals = self._status.refusals if self._status else ()
            self._refused_before[change.unit] = max((r.number for r in refusals), default=0)
            self._driver.start_node(self._config, change.unit)

    # ------------------------------------------------------------------ joining

    def _join_step(self, only: Collection[str]) -> bool:
        """Wait until every wanted node that runs has joined; False when the time is over."""
        wanted = [n for n in self._config.node_names if not only or n in only]
        waiting = [name for name in wanted if name not in self._failed]
        deadline = time.monotonic() + self._join_timeout_s
        while waiting:
            self._stop_if_asked()
            self._ask()
            for name in list(waiting):
                if self._has_joined(name):
                    waiting.remove(name)
                    self._tell(Report(name, Step.JOINED, "joined", "done"))
                elif not self._driver.is_running(name):
                    waiting.remove(name)
                    self._fail(name, "its process ended")
                elif (refusal := self._refusal(name)) and not self._try_again(name, refusal):
                    waiting.remove(name)
                    self._fail(name, f"it was refused: {refusal.code}: {refusal.why}", quote=False)
            if waiting and not self._driver.is_running(CONTROL):
                raise _control_ended(self._config.name, self._driver.last_words(CONTROL))
            if waiting and time.monotonic() > deadline:
                for name in waiting:
                    text = f"has not joined within {self._join_timeout_s:g} s"
                    self._tell(Report(name, Step.JOINED, text, "failed"))
                return False
            if waiting:
                time.sleep(POLL_S)
        self._ask()
        return True

    def _refusal(self, name: str) -> Refusal | None:
        """Why the control plane does not let the process in that runs now, if so."""
        key = self._driver.public_key(name)
        after = self._refused_before.get(name, 0)
        for refusal in self._status.refusals if self._status else ():
            is_its = name == refusal.node or (key and key == refusal.public_key)
            if is_its and refusal.number > after:
                return refusal
        return None

    def _try_again(self, name: str, refusal: Refusal) -> bool:
        """Restart a refused engine that was here before us: what kept it out may be mended by
        now, and it would not ask again. False for one that we have started."""
        if name in self._refused_before:
            return False
        why = f"it was refused: {refusal.code}: {refusal.why}"
        change = Change(name, Step.ENGINE, "restart", why)
        try:
            self._do(change, lambda: self._engine(change))
        except EvctlError:
            return False
        return True

    def _fail(self, name: str, why: str, *, quote: bool = True) -> None:
        words = self._driver.last_words(name) if quote else ""
        self._failed[name] = f"{why}; its last words:\n{words}" if words else why
        self._tell(Report(name, Step.JOINED, self._failed[name], "failed"))

    def _has_joined(self, name: str) -> bool:
        """In the eyes of the control plane, and as the process that runs now."""
        node = self._node(name)
        if node is None or node.state != "ok":
            return False
        started = any(c.unit == name and c.action != "stop" for c in self._changed)
        return not started or node.boot_id != self._boots_before.get(name, "")

    def _node(self, name: str) -> NodeStatus | None:
        nodes = self._status.nodes if self._status else ()
        return next((node for node in nodes if node.name == name), None)

    def _ask(self) -> None:
        """The newest status; the last one known while the control plane does not answer."""
        socket_path = self._driver.admin_socket()
        if socket_path is not None:
            try:
                self._status = self._connect(socket_path).status()
            except UnreachableError:
                self._status = None

    def _note_boots(self) -> None:
        """Remember who the nodes were, so that a killed one is not taken for its successor."""
        if self._driver.observe(self._config).control.state is UnitState.RUNNING:
            self._ask()
        for node in self._status.nodes if self._status else ():
            self._boots_before.setdefault(node.name, node.boot_id)

    def _stop_if_asked(self) -> None:
        if self._interrupted():
            raise _InterruptedError


def _control_ended(cluster: str, words: str) -> EvctlError:
    return EvctlError(
        what="the control plane ended while nodes were joining",
        why=f"its last words:\n{words}" if words else "it left no words",
        next_step=f"evctl logs control --tail 50{cluster_flag(cluster)}, then evctl up {cluster}",
        code="EV-1714",
    )
