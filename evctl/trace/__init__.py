"""Recorded agent conversations: their form, importers, statistics, and the agents that replay."""
