"""Models: where weights come from, how they lie on disk, how text becomes token ids."""
