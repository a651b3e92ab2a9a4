"""What `evctl bench` has an engine's side measure: processes that print lines of JSON.

source.py         a process whose L2 others read from
reader.py         reads blocks from a source into an L2 of its own, and verifies them
transfer.py       that against a plain copy, or against the backend's library alone
write_through.py  what copies into L2 cost decode
"""
