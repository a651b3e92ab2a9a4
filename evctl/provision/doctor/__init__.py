"""Whether this machine has what a cluster needs, and whether what runs is shut against strangers.

facts.py      what was found, as values
gathering.py  finds it; reads only, and leaves nothing behind
checks/       what it means: pure functions of a cluster's config and the facts

It looks at the machine that it runs on. Nodes of a local cluster all run there.
"""
