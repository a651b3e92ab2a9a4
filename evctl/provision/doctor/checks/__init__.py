"""What the facts mean, one function a check. Pure: equal facts, equal words."""
