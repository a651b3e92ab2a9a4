"""The live shell of the control plane: one writer, and everything that reads from it."""
