"""View-models: what a panel says, as a pure function of what is known. No widgets here."""
