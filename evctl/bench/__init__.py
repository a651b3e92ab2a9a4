"""Scenarios, scores and reports."""
