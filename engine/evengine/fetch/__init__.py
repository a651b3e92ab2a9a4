"""KV that a waiting request needs and this node's L1 lacks: fetched while it queues.

    peer's L2 -> (read, verified) -> own L2 -> (copied, verified) -> L1

plan.py     what of a prompt is where
flights.py  blocks on their way from peers' L2 into ours: asked for, read, accepted
fetcher.py  a request's way to its KV: flights, then restores, then runnable
lender.py   the other side: peers that read from our L2
"""
