"""Recorded agents on live engines of this machine, once for each way to route.

testbed   a cluster of its own, started by the command that people use
run       the same conversations under every policy and seed, one fresh cluster each
report    rows beside each other
"""
