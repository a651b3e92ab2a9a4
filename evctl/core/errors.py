"""Errors that an operator can act on.

    EvctlError                 what failed, why, what to do next, a stable code
    ├── UsageError             exit 2   the command or value is malformed
    ├── ConfigError            exit 3   a configuration file or key is wrong
    ├── UnreachableError       exit 4   the other side cannot be reached
    ├── ConflictError          exit 7   somebody else changed or holds the thing
    ├── RefusedError           exit 8   a safety rule says no
    ├── NotFoundError          exit 9   the named thing does not exist
    └── IntegrityError         exit 1   bytes are not what they claim to be

Codes: EV-1xxx control plane, EV-2xxx engine and models, EV-3xxx wire, EV-4xxx KV transfer,
EV-9xxx a bug in evctl itself.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes; scripts rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CONFIG_INVALID = 3
    UNREACHABLE = 4
    PARTIAL = 5
    TIMED_OUT = 6
    CONFLICT = 7
    REFUSED = 8
    NOT_FOUND = 9
    CHANGES_PENDING = 10
    INTERRUPTED = 130


class EvctlError(Exception):
    """One failure, told so that its reader knows what to do.

    what: the thing that failed, one line. why: the cause found. next_step: a command or
    action that helps. code: stable identifier that `evctl explain` documents.
    """

    default_exit = ExitCode.FAILED

    def __init__(
        self,
        *,
        what: str,
        why: str,
        next_step: str,
        code: str,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why
        self.next_step = next_step
        self.code = code
        self.exit_code = int(self.default_exit if exit_code is None else exit_code)

    def render(self) -> str:
        """The four-line form that every front end prints on stderr."""
        return (
            f"error[{self.code}]: {self.what}\n"
            f"  why:  {self.why}\n"
            f"  next: {self.next_step}\n"
            f"  more: evctl explain {self.code}"
        )


class UsageError(EvctlError):
    """The command or value is malformed."""

    default_exit = ExitCode.USAGE


class ConfigError(EvctlError):
    """A configuration file or key is wrong."""

    default_exit = ExitCode.CONFIG_INVALID


class UnreachableError(EvctlError):
    """The other side, or an address of ours, cannot be reached."""

    default_exit = ExitCode.UNREACHABLE


class ConflictError(EvctlError):
    """Somebody else changed or holds the thing."""

    default_exit = ExitCode.CONFLICT


class RefusedError(EvctlError):
    """A safety rule says no."""

    default_exit = ExitCode.REFUSED


class NotFoundError(EvctlError):
    """The named thing does not exist."""

    default_exit = ExitCode.NOT_FOUND


class IntegrityError(EvctlError):
    """Bytes that do not match their checksum, generation or key."""
