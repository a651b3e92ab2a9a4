"""The KV directory measured on this machine, a peer's beside it.

`cases` says what is measured and which rows that gives, `inputs` makes what both sides are fed
and writes it to files, `ours` and `peer_dynamo.py` measure one task on one file in a process of
their own, `interleave` runs them in turn and takes medians, `run` puts it together, `growth`
draws how times grow.
"""
