"""Stand-in for SGLang's kernel package, which is not built for CPUs without AMX.

It holds what SGLang 0.5.23 imports or calls on the way of a Llama-shaped model in PyTorch; every
other name exists and raises when called. It also takes CUDA-only arguments and events off torch:
without a device there is nothing to pin and nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__version__ = "0.4.10+standin"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    *_: object,
) -> None:
    """Write each request's new cache slots into its row of the table."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> None:
        raise NotImplementedError(f"sgl_kernel stand-in has no {name}")

    return missing


def _without_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    def unpinned(*args: object, **kwargs: object) -> Any:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    unpinned.__name__ = getattr(make, "__name__", "unpinned")
    return unpinned


class _Event:
    """A CUDA event on a machine where all work is done when the call returns."""

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def record(self, *_: object) -> None: ...

    def wait(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: object) -> float:
        return 0.0


class _Cudart:
    class cudaError:  # noqa: N801  the name in torch
        success = 0

    def cudaHostRegister(self, *_: object) -> int:  # noqa: N802
        return 0

    def cudaHostUnregister(self, *_: object) -> int:  # noqa: N802
        return 0


def _make_torch_deviceless() -> None:
    for name in ("empty", "zeros", "ones", "full", "tensor", "empty_like", "zeros_like"):
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_a, **_k: self
    torch.cuda.Event = _Event
    torch.cpu.Event = _Event
    torch.cuda.current_stream = lambda *_a, **_k: torch.cpu.current_stream()
    torch.cuda.cudart = _Cudart


if not torch.cuda.is_available():
    _make_torch_deviceless()
