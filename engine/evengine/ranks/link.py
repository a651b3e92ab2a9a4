"""Frames between the lead of a node and one of its ranks, over a socket pair."""

from __future__ import annotations

import socket
import struct

import msgspec

LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20


class LinkClosedError(Exception):
    """The process at the other end is gone, or sends what is no frame."""


class RankSetup(msgspec.Struct, frozen=True):
    """First frame to a rank. model: its directory. segment: file of the node's KV memory, in
    which this rank's part of L1 is [region_offset, region_offset + region_bytes)."""

    model: str
    block_tokens: int
    threads: int
    rank: int
    ranks: int
    segment: str
    region_offset: int
    region_bytes: int


class Link:
    """One end. An empty frame is a token: "I am here"."""

    def __init__(self, end: socket.socket, wait_s: float | None) -> None:
        """wait_s: the most that one send or receive may take; None waits for ever."""
        self._end = end
        self.wait_s = wait_s
        end.settimeout(wait_s)

    def send(self, payload: bytes = b"") -> None:
        """Raises LinkClosedError, TimeoutError."""
        try:
            self._end.sendall(LENGTH.pack(len(payload)) + payload)
        except TimeoutError:
            raise
        except OSError as error:
            raise LinkClosedError(str(error)) from error

    def receive(self) -> bytearray:
        """The next frame. Blocks without spinning. Raises LinkClosedError, TimeoutError."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise LinkClosedError(f"a frame of {length} bytes")
        return self._exactly(length)

    def patience(self, wait_s: float | None) -> None:
        self.wait_s = wait_s
        self._end.settimeout(wait_s)

    def interrupt(self) -> None:
        """End every wait on this link, at both ends; from any thread."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already

    def close(self) -> None:
        self._end.close()

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        rest = memoryview(data)
        while rest:
            try:
                count = self._end.recv_into(rest)
            except TimeoutError:
                raise
            except OSError as error:
                raise LinkClosedError(str(error)) from error
            if not count:
                raise LinkClosedError("end of the stream")
            rest = rest[count:]
        return data
