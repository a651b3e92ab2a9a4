"""`evctl bench transfer`: KV from a peer's L2 into ours against a plain copy, and what copying
finished blocks into L2 costs decode.

run.py      starts the processes of evengine.benches, which measure
report.py   rows of what they found
"""
