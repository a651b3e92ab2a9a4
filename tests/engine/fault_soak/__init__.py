"""Faults under load: three engines work for a crowd of branches while transfers lie and peers die.

`python -m tests.engine.fault_soak --backend shm --kind all --rounds 5` prints a line a round and a
table at the end; see __main__.

corpus.py   the prompts, and what a clean engine answers to each
cluster.py  three engines that can be told to misbehave, and a small directory of who holds what
load.py     requests in flight, and what is owed for each
audit.py    what has to hold once all is quiet
rounds.py   one round of faults, of a killed peer, of a stopped one
"""
