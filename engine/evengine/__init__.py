"""evengine: the data plane on a node, one symmetric loop for both phases."""
