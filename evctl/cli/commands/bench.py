"""evctl bench directory | eviction"""

from __future__ import annotations

from evctl.cli.commands import bench_directory, bench_eviction
from evctl.cli.groups import group

app = group("Measure parts of evctl on this machine.")

app.command(help=bench_directory.SUMMARY)(bench_directory.directory)
app.command(help=bench_eviction.SUMMARY)(bench_eviction.eviction)
