"""Fitted execution-time models on disk, so that a restart begins with what was learned.

One file for each (model, numerics, hardware, engine version, ranks): what times depend on. It is
written whole and read with suspicion: one that is damaged, or of something else, is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final

import msgspec

from evctl.control.statedir import write_whole
from evctl.core.costs import TERMS, Coefficients, finite
from evctl.wire.messages import Hello

FORMAT: Final = 1

MOST_S: Final = 3600.0
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_S)]


class Identity(msgspec.Struct, frozen=True):
    """Nodes that are alike in all of this take the same time for the same work."""

    model: str
    weights_hash: str
    numerics: str
    hardware: str
    engine: str
    ranks: int
    context_term: bool

    @property
    def file_name(self) -> str:
        return f"{blake2b(msgspec.json.encode(self), digest_size=12).hexdigest()}.json"


class KeptModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file. terms: seconds a unit; errors: null where the data could not tell. fitted_s: seconds
    since the epoch."""

    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    identity: Identity
    fitted_s: float
    terms: dict[str, Seconds]
    errors: dict[str, Seconds | None]
    unidentified: tuple[str, ...]
    windows: tuple[int, int]
    residual: Annotated[float, msgspec.Meta(ge=0.0)]
    experts: Annotated[int, msgspec.Meta(ge=0)] = 0
    experts_per_token: Annotated[int, msgspec.Meta(ge=0)] = 0
    forwarded_tokens: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    context_tokens: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] = 0.0


def identity_of(hello: Hello, *, context_term: bool) -> Identity | None:
    """None of an engine that does not say what it runs on: then nothing may be kept."""
    if not hello.hardware or not hello.engine:
        return None
    return Identity(
        model=hello.model,
        weights_hash=hello.weights_hash,
        numerics=hello.numerics,
        hardware=hello.hardware,
        engine=hello.engine,
        ranks=hello.peer.transfer.ranks,
        context_term=context_term,
    )


class KeptModels:
    """The folder. warn: told of what is ignored, or could not be written."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn

    def read(self, identity: Identity) -> Coefficients | None:
        """None where there is none, or none to be trusted."""
        path = self._folder / identity.file_name
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=KeptModel)
            why = _fault(kept, identity)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            why = str(getattr(error, "strerror", None) or error)
        if why:
            self._warn(f"the kept model in {path} is damaged and ignored: {why}")
            return None
        return _coefficients(kept)

    def write(self, identity: Identity, model: Coefficients, now_s: float) -> str:
        """Keep a model in place of the one before. Returns why it could not be, "" if it was."""
        kept = KeptModel(
            format=FORMAT,
            identity=identity,
            fitted_s=now_s,
            terms={term: getattr(model, f"{term}_s") for term in TERMS},
            errors={t: finite(e) for t, e in zip(TERMS, model.errors, strict=True)},
            unidentified=model.unidentified,
            windows=model.windows,
            residual=model.residual,
            experts=model.experts,
            experts_per_token=model.experts_per_token,
            forwarded_tokens=model.forwarded_tokens,
            context_tokens=model.context_tokens,
        )
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._folder / identity.file_name, msgspec.json.encode(kept))
        except OSError as error:
            return str(error.strerror or error)
        return ""


def _fault(kept: KeptModel, identity: Identity) -> str:
    """What the types cannot say."""
    if kept.identity != identity:
        return "it is of another model, machine or engine"
    if set(kept.terms) != set(TERMS) or set(kept.errors) != set(TERMS):
        return "it has other terms than this version"
    if not set(kept.unidentified) <= set(TERMS) or kept.experts_per_token > kept.experts:
        return "its terms and experts do not agree"
    return fault_of(_coefficients(kept))


def fault_of(model: Coefficients) -> str:
    """Why no prediction could be made by a model, read or fitted; "" where one can."""
    values = [getattr(model, f"{term}_s") for term in TERMS]
    if not all(0.0 <= value <= MOST_S for value in values) or not math.isfinite(model.residual):
        return "a term is none of seconds"
    if not model.c0_s + model.c1_s + model.c2_s > 0.0:
        return "prefill would take no time"
    if not model.d0_s + model.d1_s + model.d2_s + model.d3_s > 0.0:
        return "decode would take no time"
    return ""


def _coefficients(kept: KeptModel) -> Coefficients:
    errors = [kept.errors[term] for term in TERMS]
    return Coefficients(
        **{f"{term}_s": kept.terms[term] for term in TERMS},
        experts=kept.experts,
        experts_per_token=kept.experts_per_token,
        forwarded_tokens=kept.forwarded_tokens,
        errors=tuple(math.inf if error is None else error for error in errors),
        unidentified=kept.unidentified,
        windows=kept.windows,
        residual=kept.residual,
        context_tokens=kept.context_tokens,
    )
