"""How a measurement is told: as a table in a command's own way, or whole as a document."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evctl.cli.output import Form, print_document
from evctl.core.errors import ExitCode

if TYPE_CHECKING:  # the commands that print one import it when they have measured
    from evctl.bench.measurement import Measurement


def answer(form: Form, found: Measurement, show: Callable[[], None]) -> ExitCode:
    """Print it; exit 1 for a goal missed. show: prints the table and what goes with it."""
    if form is Form.TABLE:
        show()
    else:
        import msgspec

        values = msgspec.to_builtins(found)
        print_document(form, values.pop("kind"), values)
    return ExitCode.DONE if found.ok else ExitCode.FAILED


def circumstances(found: Measurement) -> str:
    """How long it took, what else the machine did, and what that is."""
    low, high = found.load
    return f"{found.wall_s:.0f} s, load {low:.1f} to {high:.1f}, {found.machine}"
