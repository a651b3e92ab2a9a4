"""What comes back from an admin call, and the errors that it can mean."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from evctl.core.errors import (
    ConfigError,
    ConflictError,
    EvctlError,
    ExitCode,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from evctl.core.status import ErrorBody

Answer = TypeVar("Answer")

_BY_EXIT: Final[dict[int, type[EvctlError]]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.CONFIG_INVALID: ConfigError,
    ExitCode.UNREACHABLE: UnreachableError,
    ExitCode.CONFLICT: ConflictError,
    ExitCode.REFUSED: RefusedError,
    ExitCode.NOT_FOUND: NotFoundError,
}
_BY_STATUS: Final[dict[int, type[EvctlError]]] = {
    404: NotFoundError,
    409: ConflictError,
    422: UsageError,
}


def decoded(content: bytes, kind: type[Answer], call: str) -> Answer:
    """The answer as a value. Raises EvctlError (EV-1402) for one that is none of ours."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise unusable(call, str(error)) from error


def unusable(call: str, why: str) -> EvctlError:
    return EvctlError(
        what=f"the control plane answered {call} with something unexpected",
        why=why,
        next_step="compare `evctl version` with the version that runs: evctl logs control",
        code="EV-1402",
    )


def refusal(status: int, content: bytes, call: str) -> EvctlError:
    """The error that a refused call carries, of the class that its exit code says."""
    try:
        body = msgspec.json.decode(content, type=ErrorBody)
    except msgspec.DecodeError:
        text = content[:200].decode("utf-8", "replace").strip() or "nothing"
        why = f"HTTP {status}: {text}"
        kind = _BY_STATUS.get(status)
        if kind is None:
            return unusable(call, why)
        return kind(
            what=f"the control plane refused {call}",
            why=why,
            next_step="evctl logs control --tail 20",
            code="EV-1404",
        )
    kind = _BY_EXIT.get(body.exit_code, EvctlError)
    return kind(
        what=body.what,
        why=body.why,
        next_step=body.next,
        code=body.code,
        exit_code=body.exit_code,
    )


def nobody_listens(address: str, why: str) -> UnreachableError:
    return UnreachableError(
        what="the control plane cannot be reached",
        why=f"nobody listens on {address}: {why}",
        next_step="evctl up starts what does not run; evctl logs control says why it ended",
        code="EV-1401",
    )


def no_answer(address: str, call: str, timeout_s: float) -> UnreachableError:
    return UnreachableError(
        what="the control plane does not answer",
        why=f"{call} on {address} took more than {timeout_s:g} s",
        next_step="evctl logs control --tail 20",
        code="EV-1403",
    )
