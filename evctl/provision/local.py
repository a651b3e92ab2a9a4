"""The local driver: all processes of a cluster on this machine, detached, in one directory."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from evctl.config.paths import CLUSTER_FILE, cluster_dir, clusters_root
from evctl.config.settings import cluster_flag
from evctl.core.errors import EvctlError
from evctl.provision import keyfiles, logs
from evctl.provision.driver import CONTROL, LogReader, Observed, Say, Unit, UnitState
from evctl.provision.engine_config import control_config, difference, engine_config
from evctl.provision.files import create_private, exclusive, read_json, write_private
from evctl.provision.model_fetch import fetch_model
from evctl.provision.ports import problem_with
from evctl.provision.processes import (
    Mark,
    ProcessRecord,
    Started,
    end,
    find,
    find_all,
    start_detached,
)

if TYPE_CHECKING:  # the schema costs 60 ms, and only `up` reads it
    from evctl.config.cluster import ClusterConfig

CONTROL_START_TIMEOUT_S: Final = 60.0
STARTING_S: Final = 15.0
"""A control plane that does not listen after so long has lost its control.json."""
POLL_S: Final = 0.05
FAILED_LOG_LINES: Final = 5
SECRET_BYTES: Final = 32
DOWN: Final = "down.json"
TOLD: Final = re.compile(r"error\[(EV-\d{4})\]: (.*)\n +why:  (.*)\n +next: (.*)")
"""An error as a process of ours tells its own end, beside the line of its log."""


class Programs(msgspec.Struct, frozen=True):
    """What is started, before the options that say where things are."""

    control: Sequence[str] = (sys.executable, "-m", "evctl.serve")
    engine: Sequence[str] = (sys.executable, "-m", "evengine")
    models: Sequence[str] = (sys.executable, "-m", "evengine.models")


class LocalDriver:
    """A ClusterDriver; `name` is the cluster's."""

    def __init__(self, name: str, programs: Programs | None = None) -> None:
        self._name = name
        self._programs = programs or Programs()
        self.directory = cluster_dir(name)
        self._nodes = self.directory / "nodes"
        self._keys = self.directory / "keys"
        self._logs = self.directory / "logs"
        self._started: dict[str, Started] = {}

    # ------------------------------------------------------------------ what there is

    def observe(self, config: ClusterConfig) -> Observed:
        names = dict.fromkeys([*config.node_names, *self._recorded_nodes()])
        serves, gateway = self._gateway_port(), config.gateway
        has_it = gateway.port in (0, serves)
        return Observed(
            missing=tuple(self._missing(config)),
            outdated=tuple(self._outdated(config)),
            model_ready=self._model_directory(config) is not None,
            control=self._observe_control(config),
            nodes={name: self._observe_node(config, name) for name in names},
            gateway_port=serves,
            port_problem="" if has_it else problem_with(gateway.host, gateway.port),
        )

    def units(self) -> list[Unit]:
        nodes = self._recorded_nodes()
        return [self._unit(name) for name in (CONTROL, *nodes)]

    def is_running(self, unit: str) -> bool:
        started = self._started.get(unit)
        if started is not None:
            started.handle.poll()  # collects the end of our own children
        return self._unit(unit).state is UnitState.RUNNING

    def admin_socket(self) -> Path | None:
        record = read_json(self.directory / "control.json")
        return Path(str(record["admin"])) if record and record.get("admin") else None

    def open_log(self, unit: str) -> LogReader:
        return logs.FileLog(self._logs / f"{unit}.jsonl")

    def public_key(self, node: str) -> str:
        return keyfiles.proven_key(self._keys / f"{node}.key")

    def last_words(self, unit: str) -> str:
        """Lines of our own as their message; an error told in full stands for all before it."""
        lines = self.open_log(unit).tail(FAILED_LOG_LINES)
        text = "\n".join(_plain(line) for line in lines)
        return text[text.rfind("error[EV-") :] if "error[EV-" in text else text

    def down_since_s(self) -> float | None:
        said = read_json(self.directory / DOWN)
        return float(said["time_s"]) if said and "time_s" in said else None

    # ------------------------------------------------------------------ what is done

    def locked(self, purpose: str) -> AbstractContextManager[None]:
        return exclusive(clusters_root() / f".{self._name}.lock", self._name, purpose)

    def prepare(self, config: ClusterConfig) -> None:
        for folder in self._folders():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        create_private(self.directory / "kv.secret", secrets.token_bytes(SECRET_BYTES))
        for path in self._key_files(config):
            keyfiles.ensure_keys(path)
        content = config.model_dump_json(indent=2).encode() + b"\n"
        write_private(self.directory / CLUSTER_FILE, content)

    def fetch_model(self, config: ClusterConfig, say: Say) -> None:
        directory = fetch_model(self._programs.models, config.model, say)
        record = {"name": config.model, "directory": directory}
        write_private(self.directory / "model.json", msgspec.json.encode(record))

    def start_control(self, config: ClusterConfig) -> int:
        (self.directory / DOWN).unlink(missing_ok=True)
        command = [*self._programs.control, "--cluster-dir", str(self.directory)]
        started = self._start(CONTROL, command)
        launch = {**_told(started.record), "config": control_config(config)}
        self._record(started, self.directory / "control.launch.json", launch)
        self.await_control()
        return started.record.pid

    def let_control_start(self) -> None:
        path = self.directory / "control.json"
        while (process := self._control_process()) is not None:
            damaged = path.exists() and read_json(path) is None
            age_s = time.time() - process.start_time
            if damaged or self._listens(process.pid) or not 0 <= age_s < STARTING_S:
                return
            time.sleep(POLL_S)

    def await_control(self) -> None:
        record = self._running_record(CONTROL)
        deadline = time.monotonic() + CONTROL_START_TIMEOUT_S
        while record is None or not self._listens(record.pid):
            if record is None or not self.is_running(CONTROL):
                raise self._did_not_start(CONTROL, "its process ended")
            if time.monotonic() > deadline:
                raise self._did_not_start(
                    CONTROL, f"it did not listen within {CONTROL_START_TIMEOUT_S:g} s"
                )
            time.sleep(POLL_S)

    def start_node(self, config: ClusterConfig, node: str) -> int:
        wanted = self._engine_config(config, node)
        if wanted is None:
            raise self._did_not_start(node, "the control plane's address or the model is unknown")
        path = self._nodes / f"{node}.config.json"
        write_private(path, msgspec.json.format(msgspec.json.encode(wanted), indent=2))
        command = [*self._programs.engine, "--config", str(path)]
        started = self._start(node, command)
        record = {**_told(started.record), "config": str(path)}
        self._record(started, self._nodes / f"{node}.json", record)
        return started.record.pid

    def stop(self, unit: str, timeout_s: float) -> bool:
        """All its processes: one that nobody recorded would otherwise live for ever."""
        recorded = [r for r in self._records(unit) if find(r) is not None]
        pids = {record.pid for record in recorded}
        strays = [r for r in find_all(self._mark(unit)) if r.pid not in pids]
        ends = [end(record, timeout_s) for record in (*recorded, *strays)]
        started = self._started.pop(unit, None)
        if started is not None:
            started.handle.poll()
        return any(ends)

    def note_down(self) -> None:
        if self.directory.is_dir():
            write_private(self.directory / DOWN, msgspec.json.encode({"time_s": time.time()}))

    def purge(self) -> None:
        if self.directory.exists():
            shutil.rmtree(self.directory)

    # ------------------------------------------------------------------ parts

    def _folders(self) -> tuple[Path, ...]:
        journal = self.directory / "journal"
        return self.directory, self._nodes, self._keys, self._logs, journal

    def _key_files(self, config: ClusterConfig) -> list[Path]:
        nodes = [self._keys / f"{name}.key" for name in config.node_names]
        return [self.directory / "control.key", *nodes]

    def _missing(self, config: ClusterConfig) -> list[str]:
        if not self.directory.is_dir():
            return ["state directory", "keys", "config"]
        missing = [str(f.relative_to(self.directory)) for f in self._folders() if not f.is_dir()]
        if not (self.directory / "kv.secret").is_file():
            missing.append("kv.secret")
        for path in self._key_files(config):
            if not keyfiles.has_keys(path):
                missing.append(f"key of {path.stem}")
        if read_json(self.directory / CLUSTER_FILE) is None:
            missing.append("config")
        return missing

    def _outdated(self, config: ClusterConfig) -> list[str]:
        resolved = read_json(self.directory / CLUSTER_FILE)
        wanted = config.model_dump(mode="json")
        if resolved is None or resolved == wanted:
            return []
        return [f"config ({difference(resolved, wanted)})"]

    def _gateway_port(self) -> int | None:
        """Where the control plane that runs now serves."""
        record = self._running_record(CONTROL)
        said = read_json(self.directory / "control.json")
        if record is None or said is None or not self._listens(record.pid):
            return None
        return urlsplit(str(said.get("gateway", ""))).port

    def _recorded_nodes(self) -> list[str]:
        found = [path.stem for path in self._nodes.glob("*.json") if "." not in path.stem]
        return sorted(found, key=lambda name: (len(name), name))

    def _model_directory(self, config: ClusterConfig) -> str | None:
        record = read_json(self.directory / "model.json")
        if record is None or record.get("name") != config.model:
            return None
        directory = Path(str(record.get("directory")))
        return str(directory) if (directory / "config.json").is_file() else None

    def _unit(self, name: str, *, adopt: bool = False) -> Unit:
        records = self._records(name)
        for record in records:
            if find(record) is not None:
                return Unit(name, UnitState.RUNNING, record.pid)
        for stray in find_all(self._mark(name)):
            if adopt:
                self._adopt(name, stray)
            return Unit(name, UnitState.RUNNING, stray.pid)
        if records:
            return Unit(name, UnitState.ENDED, records[0].pid)
        return Unit(name, UnitState.ABSENT)

    def _control_process(self) -> ProcessRecord | None:
        """Also one that nobody has recorded yet."""
        strays = find_all(self._mark(CONTROL))
        return self._running_record(CONTROL) or (strays[0] if strays else None)

    def _running_record(self, name: str) -> ProcessRecord | None:
        return next((r for r in self._records(name) if find(r) is not None), None)

    def _adopt(self, name: str, stray: ProcessRecord) -> None:
        """Record a process that was started but not recorded: an `up` was killed in between, or
        the record is damaged. The control plane judges its engines by these records."""
        if name != CONTROL:
            record = {**_told(stray), "config": self._mark(name)[1]}
            write_private(self._nodes / f"{name}.json", msgspec.json.encode(record))

    def _mark(self, name: str) -> Mark:
        if name == CONTROL:
            return "--cluster-dir", str(self.directory)
        return "--config", str(self._nodes / f"{name}.config.json")

    def _records(self, name: str) -> list[ProcessRecord]:
        """Who a unit may be. The control plane also says so itself, however it was started."""
        if name == CONTROL:
            paths = [self.directory / "control.launch.json", self.directory / "control.json"]
        else:
            paths = [self._nodes / f"{name}.json"]
        found = [_read_record(read_json(path), self._mark(name)) for path in paths]
        return [record for record in found if record is not None]

    def _observe_control(self, config: ClusterConfig) -> Unit:
        unit = self._unit(CONTROL, adopt=True)
        launch = read_json(self.directory / "control.launch.json") or {}
        drift = difference(launch.get("config"), control_config(config))
        if unit.state is UnitState.RUNNING and not self._listens(unit.pid):
            drift = drift or "control.json is missing or damaged"
        return msgspec.structs.replace(unit, drift=drift)

    def _observe_node(self, config: ClusterConfig, name: str) -> Unit:
        unit = self._unit(name, adopt=True)
        if name not in config.node_names:
            return unit
        wanted = self._engine_config(config, name)
        running_with = read_json(self._nodes / f"{name}.config.json")
        drift = "" if wanted is None else difference(running_with, wanted)
        return msgspec.structs.replace(unit, drift=drift)

    def _engine_config(self, config: ClusterConfig, node: str) -> dict[str, Any] | None:
        """None while the control plane's address or the model are not known yet."""
        control = read_json(self.directory / "control.json")
        model = self._model_directory(config)
        key = self.directory / "control.key"
        endpoint = control.get("control_endpoint") if control else None
        if not isinstance(endpoint, str) or model is None or not keyfiles.has_keys(key):
            return None
        return engine_config(
            config,
            node,
            control_endpoint=endpoint,
            control_public_key=keyfiles.public_key(key),
            keypair=self._keys / f"{node}.key",
            model=model,
        )

    def _start(self, unit: str, command: list[str]) -> Started:
        log = self._logs / f"{unit}.jsonl"
        logs.rotate(log)
        try:
            started = start_detached(
                command,
                log,
                self.directory,
                self._mark(unit),
                extra_env={"OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise self._did_not_start(unit, f"{command[0]}: {error.strerror}") from error
        self._started[unit] = started
        return started

    def _record(self, started: Started, path: Path, content: dict[str, Any]) -> None:
        """Write down who was started; whoever cannot be written down must not stay."""
        try:
            write_private(path, msgspec.json.encode(content))
        except EvctlError:
            end(started.record, 1.0)
            started.handle.poll()
            raise

    def _listens(self, pid: int | None) -> bool:
        """Whether control.json is of this process, which writes it once it listens."""
        said = read_json(self.directory / "control.json") or {}
        return pid is not None and said.get("pid") == pid and "control_endpoint" in said

    def _did_not_start(self, unit: str, why: str) -> EvctlError:
        words = self.last_words(unit)
        why += f"; its last words:\n{_indented(words)}" if words else ""
        flag = cluster_flag(self._name)
        next_step = f"evctl logs {unit} --tail 50{flag}, then evctl up {self._name}"
        if match := TOLD.match(words):
            code, what, cause, next_step = match.groups()
            why = f"{what}: {cause} ({code})"
        return EvctlError(
            what=f"{unit} did not start", why=why, next_step=next_step, code="EV-1711"
        )


def _told(record: ProcessRecord) -> dict[str, Any]:
    return {"pid": record.pid, "start_time": record.start_time}


def _read_record(said: dict[str, Any] | None, mark: Mark) -> ProcessRecord | None:
    """None where the file says nothing that could be a process: it is damaged."""
    pid, start_time = (said or {}).get("pid"), (said or {}).get("start_time", 0.0)
    if type(pid) is not int or not 0 < pid < 2**31 or not isinstance(start_time, int | float):
        return None
    return ProcessRecord(pid, float(start_time), mark)


def _plain(line: str) -> str:
    """The message of a line of our log; any other line as it is."""
    try:
        said = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line
    message = said.get("message") if isinstance(said, dict) else None
    return f"{said.get('level', 'info')}: {message}" if isinstance(message, str) else line


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
