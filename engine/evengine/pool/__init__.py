"""L1 and L2: KV blocks in the memory of this node."""
