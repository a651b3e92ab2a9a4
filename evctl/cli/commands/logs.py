"""evctl logs [NODE...]"""

from __future__ import annotations

import json
import re
import sys
import time
from difflib import get_close_matches
from typing import Annotated, Final

import typer

from evctl.cli.loglines import LEVELS, LogLine, parse_line, shown
from evctl.cli.moments import moment
from evctl.cli.output import Form, chosen, output_option, print_line, terminal_width
from evctl.cli.target import ClusterOption, Target, complete_unit, find_target
from evctl.core.errors import ExitCode, NotFoundError, UsageError
from evctl.provision.driver import CONTROL, ClusterDriver, LogReader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

POLL_S: Final = 0.2


class Filter:
    """since_s: seconds since the epoch, or None. Text that is no JSON passes every level: it is
    what a crash leaves."""

    def __init__(self, since: str | None, level: str | None, grep: str | None) -> None:
        self._since_s = moment(since) if since else None
        self._least = _level(level)
        self._pattern = _pattern(grep)

    def __call__(self, line: LogLine) -> bool:
        if self._since_s is not None and line.time_s is not None and line.time_s < self._since_s:
            return False
        if line.level in LEVELS and LEVELS.index(line.level) < self._least:
            return False
        return self._pattern is None or self._pattern.search(line.raw) is not None


def _level(level: str | None) -> int:
    if level is None:
        return 0
    if level.lower() not in LEVELS:
        near = get_close_matches(level.lower(), LEVELS, n=1)
        raise UsageError(
            what=f"no level is named {level!r}",
            why=f"levels are {', '.join(LEVELS)}",
            next_step=f"did you mean {near[0]}?" if near else "give one of them",
            code="EV-1810",
        )
    return LEVELS.index(level.lower())


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(grep) if grep else None
    except re.error as error:
        raise UsageError(
            what=f"cannot read {grep!r} as a pattern",
            why=str(error),
            next_step="escape what is meant literally with a backslash",
            code="EV-1811",
        ) from error


def complete_level(incomplete: str) -> list[str]:
    return [level for level in LEVELS if level.startswith(incomplete.lower())]


@app.command()
def logs(
    units: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE|control", help="All, otherwise.", autocompletion=complete_unit
        ),
    ] = None,
    cluster: ClusterOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Last lines of each; 200 by default.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="5m, 2h, or an ISO time.")] = None,
    level: Annotated[
        str | None,
        typer.Option(help=f"At least: {', '.join(LEVELS)}.", autocompletion=complete_level),
    ] = None,
    grep: Annotated[str | None, typer.Option(help="Lines that match this pattern.")] = None,
    output: Annotated[Form | None, output_option(Form.TABLE, Form.JSONL, Form.JSON)] = None,
) -> ExitCode:
    """Show what the control plane and the nodes logged, merged by time."""
    form = _form(output, follow)
    target = find_target(cluster)
    wanted = Filter(since, level, grep)
    readers = _readers(target, units or [])
    # A filter looks through everything, and the tail is then of what it lets pass.
    keep = 200 if tail is None and not since else tail
    whole = since is not None or level is not None or grep is not None
    lines: list[LogLine] = []
    for unit, reader in readers.items():
        found = reader.tail(None if whole or keep is None else keep)
        passed = [line for text in found if wanted(line := parse_line(unit, text))]
        lines.extend(passed if keep is None else passed[len(passed) - min(keep, len(passed)) :])
    try:
        _print(_merged(lines), form)
        if follow:
            _follow(readers, wanted, form)
    except KeyboardInterrupt:  # how following ends
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _form(output: Form | None, follow: bool) -> Form:
    """What is followed has no end, so it cannot be one array."""
    if not follow:
        return chosen(output, Form.TABLE, Form.JSONL, Form.JSON)
    if output is None and chosen(None, Form.TABLE, Form.JSONL, Form.JSON) is Form.JSON:
        return Form.JSONL
    return chosen(output, Form.TABLE, Form.JSONL)


def _follow(readers: dict[str, LogReader], wanted: Filter, form: Form) -> None:
    while True:
        fresh = [
            line
            for unit, reader in readers.items()
            for text in reader.read_new()
            if wanted(line := parse_line(unit, text))
        ]
        _print(_merged(fresh), form)
        time.sleep(POLL_S)


def _readers(target: Target, units: list[str]) -> dict[str, LogReader]:
    driver = target.driver()
    known = [unit.name for unit in driver.units()]
    for name in units:
        if name not in known:
            raise NotFoundError(
                what=f"cluster {target.name} has no node {name!r}",
                why=f"it has {', '.join(known)}",
                next_step="give some of them, or none for all",
                code="EV-1812",
            )
    return _open_all(driver, units or [CONTROL, *(name for name in known if name != CONTROL)])


def _open_all(driver: ClusterDriver, names: list[str]) -> dict[str, LogReader]:
    return {name: driver.open_log(name) for name in names}


def _merged(lines: list[LogLine]) -> list[LogLine]:
    """By time; a line without one stays behind the line before it."""
    last: dict[str, float] = {}
    keyed = []
    for line in lines:
        at = line.time_s if line.time_s is not None else last.get(line.unit, 0.0)
        last[line.unit] = at
        keyed.append((at, line))
    return [line for _, line in sorted(keyed, key=lambda pair: pair[0])]


def _print(lines: list[LogLine], form: Form) -> None:
    if form is Form.JSON:
        print(json.dumps([line.values() for line in lines], indent=2, ensure_ascii=False))
    width = terminal_width()
    for line in lines:
        if form is Form.TABLE:
            print(shown(line, sys.stdout, width))
        elif form is Form.JSONL:
            print_line(line.values())
    sys.stdout.flush()
