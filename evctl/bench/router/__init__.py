"""A whole routing decision measured on this machine: match, every node's terms, explanation kept.

`stage` makes a cluster as it is in the middle of its work, `decisions` times decisions on it,
`run` tells them as rows.
"""
