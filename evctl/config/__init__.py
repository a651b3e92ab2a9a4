"""What a user configures: cluster files, settings, and the places they and their state live."""
