"""evctl version"""

from __future__ import annotations

import platform

import typer

from evctl import __version__
from evctl.cli.output import Form, NamesOption, chosen, print_document

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def version(output: NamesOption = None) -> None:
    """Print the version."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    if form in (Form.TABLE, Form.NAME):
        print(f"evctl {__version__}" if form is Form.TABLE else __version__)
        return
    values = {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    print_document(form, "Version", values)
