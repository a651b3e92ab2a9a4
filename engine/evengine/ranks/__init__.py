"""The other processes of a node: what they are told, and how they meet."""
