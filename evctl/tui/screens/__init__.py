"""What fills the terminal: the overview, and the modals over it."""
