"""`python -m evengine.models list | fetch NAME | path NAME`.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import argparse
import sys

from evctl.core.errors import EvctlError, ExitCode
from evengine.models.registry import model_names, model_spec
from evengine.models.store import ensure_model, find_model, is_prepared, model_directory


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "list":
            _list()
        elif options.command == "fetch":
            print(ensure_model(options.name, _tell))
        else:
            print(find_model(options.name))
    except EvctlError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evengine.models", description="Models.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all names, and which are on this machine")
    fetch = commands.add_parser("fetch", help="download and prepare a model; prints its path")
    path = commands.add_parser("path", help="print the path of a model that is on this machine")
    for command in (fetch, path):
        command.add_argument("name", metavar="NAME")
    return parser


def _list() -> None:
    for name in model_names():
        ready = is_prepared(model_directory(model_spec(name)))
        print(f"{name:<22}{'ready' if ready else '-'}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
