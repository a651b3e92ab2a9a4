"""One module a foreign format; each yields conversations of evctl.trace.schema."""
