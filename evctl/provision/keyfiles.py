"""CURVE key files as the wire reads them: one line of z85, the secret half; `.pub` the public."""

from __future__ import annotations

from pathlib import Path

from evctl.provision.files import create_private, write_private


def ensure_keys(path: Path) -> None:
    """Make a pair unless there is one, and write the public half beside it. A secret that is none
    (a damaged file) is put aside, with .damaged after its name."""
    import zmq

    if path.exists() and not proven_key(path):
        path.replace(path.with_name(path.name + ".damaged"))
    if not path.exists():
        _, secret = zmq.curve_keypair()
        create_private(path, secret + b"\n")
    public = zmq.curve_public(path.read_bytes().strip())
    public_path = path.with_suffix(".pub")
    if not public_path.exists() or public_path.read_bytes().strip() != public:
        write_private(public_path, public + b"\n")


def proven_key(path: Path) -> str:
    """z85 text of the public half as it follows from the secret one; "" without one."""
    import zmq

    try:
        return zmq.curve_public(path.read_bytes().strip()).decode("ascii")
    except (OSError, ValueError):
        return ""


def has_keys(path: Path) -> bool:
    """Whether there is a pair, and its public half belongs to the secret one."""
    proven = proven_key(path)
    try:
        return bool(proven) and public_key(path) == proven
    except (OSError, ValueError):
        return False


def public_key(path: Path) -> str:
    """z85 text of the public half."""
    return path.with_suffix(".pub").read_text(encoding="ascii").strip()
