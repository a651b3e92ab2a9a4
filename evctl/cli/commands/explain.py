"""evctl explain CODE | TERM"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

import typer

from evctl.cli.output import Form, NamesOption, chosen, print_document
from evctl.core.errors import NotFoundError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

TEXTS: Final = Path(__file__).parent.parent / "explain"


def complete_topic(incomplete: str) -> list[str]:
    return [topic for topic in topics() if topic.lower().startswith(incomplete.lower())]


@app.command()
def explain(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE|TERM",
            help="An error code such as EV-1401, a term such as split, or exit-codes.",
            autocompletion=complete_topic,
        ),
    ] = None,
    output: NamesOption = None,
) -> None:
    """Explain an error code or a term; without one, list them."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    known = topics()
    if topic is None:
        if form in (Form.JSON, Form.YAML):
            print_document(form, "Topics", {"topics": known})
        else:
            width = max(map(len, known))
            print(
                "\n".join(
                    f"{name}" if form is Form.NAME else f"{name:<{width}} {title}".rstrip()
                    for name, title in known.items()
                )
            )
        return
    name, text = find(topic)
    if form in (Form.JSON, Form.YAML):
        print_document(form, "Explanation", {"topic": name, "text": text})
    else:
        print(text)


def topics() -> dict[str, str]:
    """Name -> title of everything that can be explained."""
    return {name: text.partition("\n")[0] for name, text in _sections().items()}


def find(topic: str) -> tuple[str, str]:
    """The name of a topic and its text. Raises NotFoundError (EV-1807) with the nearest."""
    sections = _sections()
    names = {name.lower(): name for name in sections}
    asked = topic.lower()
    if re.fullmatch(r"\d{4}", asked):
        asked = f"ev-{asked}"
    if asked in names:
        name = names[asked]
        return name, f"{name}: {sections[name]}"
    near = get_close_matches(asked, names, n=1)
    raise NotFoundError(
        what=f"nothing is known about {topic!r}",
        why="it is no error code of this version and no term of evctl",
        next_step=f"did you mean {names[near[0]]}?" if near else "evctl explain lists all",
        code="EV-1807",
    )


def _sections() -> dict[str, str]:
    """`## NAME` headings of all files -> what stands below, title first. Codes by number, then
    terms."""
    found = {}
    for path in sorted(TEXTS.glob("*.md")):
        for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            heading, _, body = part.partition("\n")
            found[heading.strip()] = body.strip()
    return dict(sorted(found.items(), key=lambda one: (not one[0].startswith("EV-"), one[0])))
