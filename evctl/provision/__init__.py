"""Bringing a cluster up and down, through a driver that knows where its nodes are."""
