"""evctl bench directory | eviction | exact | planner | transfer"""

from __future__ import annotations

from evctl.cli.commands import (
    bench_directory,
    bench_eviction,
    bench_exact,
    bench_planner,
    bench_transfer,
)
from evctl.cli.groups import group

app = group("Measure parts of evctl on this machine.")

app.command(help=bench_directory.SUMMARY)(bench_directory.directory)
app.command(help=bench_eviction.SUMMARY)(bench_eviction.eviction)
app.command(help=bench_exact.SUMMARY)(bench_exact.exact)
app.command(help=bench_planner.SUMMARY)(bench_planner.planner)
app.command(help=bench_transfer.SUMMARY)(bench_transfer.transfer)
