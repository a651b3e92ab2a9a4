"""Pure decisions: no I/O, no clock, no randomness; the simulator runs them unchanged."""
