"""Vocabulary shared by every room: frozen values, no I/O, no clock, no randomness."""
