"""evctl trace replay | stats | validate"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evctl.cli.groups import group
from evctl.cli.output import DocumentOption, Form, chosen, print_document, table
from evctl.cli.target import ClusterOption, find_target
from evctl.core.errors import ExitCode, UnreachableError

app = group("Replay recorded agent conversations, or measure them.")

SAMPLE = "sample"


def complete_trace(incomplete: str) -> list[str]:
    """The sample, and files and folders as a shell would offer them."""
    folder, _, begun = incomplete.rpartition("/")
    found = [SAMPLE] if SAMPLE.startswith(incomplete) else []
    try:
        places = sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir())
    except OSError:
        return found
    for path in places:
        if path.name.startswith(begun) and (begun or not path.name.startswith(".")):
            name = f"{folder}/{path.name}" if "/" in incomplete else path.name
            found.append(f"{name}/" if path.is_dir() else name)
    return found


TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help=f"A file, a folder, or `{SAMPLE}`.",
        autocompletion=complete_trace,
    ),
]
PROGRESS_EVERY_S = 5.0


@app.command()
def stats(trace: TraceArgument, output: DocumentOption = None) -> None:
    """Measure a trace: requests, lengths, reuse, branches."""
    import msgspec

    from evctl.trace import commands

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    found = commands.trace_stats(trace)
    if form is Form.TABLE:
        print(table(("WHAT", "VALUE"), found.rows()))
    else:
        print_document(form, "TraceStats", msgspec.to_builtins(found, str_keys=True))


@app.command()
def validate(trace: TraceArgument, output: DocumentOption = None) -> ExitCode:
    """Check a trace file; all mistakes with their lines, exit 3 for any."""
    from evctl.trace import commands

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    mistakes = commands.validate(trace)
    if form is Form.TABLE:
        print("\n".join(mistakes) if mistakes else f"{trace}: valid")
    else:
        print_document(form, "Validation", {"valid": not mistakes, "mistakes": mistakes})
    return ExitCode.CONFIG_INVALID if mistakes else ExitCode.DONE


@app.command()
def replay(
    trace: TraceArgument,
    target: Annotated[
        str | None, typer.Option(help="URL of a gateway; that of the cluster otherwise.")
    ] = None,
    cluster: ClusterOption = None,
    agents: Annotated[int, typer.Option(min=1, help="Agents at once.")] = 12,
    scale: Annotated[str, typer.Option(help="Tokens for each token of the trace.")] = "1/16",
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Stop sending after so many.")
    ] = None,
    time_scale: Annotated[float, typer.Option(help="Pauses: times this.")] = 1.0,
    gap_cap_s: Annotated[float, typer.Option(help="Pauses: at most this.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the random choices.")] = 0,
    policy: Annotated[
        str, typer.Option(help="A label of your own for the run in the report.")
    ] = "live",
    record: Annotated[
        Path | None, typer.Option(help="Write a line of JSON for each request.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    verify: Annotated[int, typer.Option(min=0, help="Compare every Nth request.")] = 0,
    verify_target: Annotated[
        str | None, typer.Option(help="URL of an engine without cache, to compare with.")
    ] = None,
    api_key: Annotated[str, typer.Option(envvar="EVCTL_API_KEY", help="Of the gateway.")] = "",
    output: DocumentOption = None,
) -> ExitCode:
    """Let agents replay a trace against a gateway; report latency, reuse, failures.

    Ctrl-C once: report what was done until then, exit 130."""
    from evctl.bench.replay import replay as run
    from evctl.cli.failures import interrupted

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    url = target or _gateway(cluster)
    shown = _Progress()
    try:
        found = run(
            trace,
            url,
            agents=agents,
            scale=scale,
            policy=policy,
            max_requests=max_requests,
            record=record,
            verify=verify,
            verify_target=verify_target,
            seed=seed,
            gap_cap_s=gap_cap_s,
            time_scale=time_scale,
            api_key=api_key,
            report_path=report,
            progress=shown,
        )
    except KeyboardInterrupt:
        raise interrupted("no report was made, and a replay begins anew each time") from None
    finally:
        shown.close()
    if form is Form.TABLE:
        rows = found.rows()
        print("\n".join(f"{row[0]:<28} {'  '.join(row[1:])}" for row in rows))
    else:
        import msgspec

        values: dict[str, Any] = msgspec.to_builtins(found)
        values.pop("apiVersion")
        print_document(form, values.pop("kind"), values)
    for what, path in (("the report", report), ("a line for each request", record)):
        if path is not None:
            sys.stderr.write(f"{what}: {path}\n")
    if any(run.extras.get("interrupted") for run in found.runs):
        sys.stderr.write("interrupted; a replay cannot go on later: the next begins anew\n")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if found.ok else ExitCode.FAILED


def _gateway(cluster: str | None) -> str:
    target = find_target(cluster)
    try:
        with target.client() as client:
            return client.status().gateway
    except UnreachableError as error:
        raise target.explained(error) from error


class _Progress:
    """A line on stderr now and then; in a terminal the same line over and over."""

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()
        self._next_s = 0.0

    def __call__(self, now: Any) -> None:
        moment_s = time.monotonic()
        if moment_s < self._next_s:
            return
        self._next_s = moment_s + (0.5 if self._moving else PROGRESS_EVERY_S)
        planned = f"/{now.planned}" if now.planned else ""
        text = (
            f"{now.elapsed_s:4.0f} s  {now.done}{planned} done, {now.failed} failed, "
            f"{now.in_flight} in flight, {now.live_branches} branches, "
            f"{now.throughput_rps:.2f}/s"
        )
        if now.verifying:
            text += f", checked {now.verifying[0]}/{now.verifying[1]}"
        sys.stderr.write(f"\r\x1b[2K{text}" if self._moving else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self._moving and self._next_s:
            sys.stderr.write("\n")
