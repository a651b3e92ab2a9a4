"""The execution-time model of a node: what it is fitted from, the fit, and what it predicts."""
