"""`evctl top`: the live terminal interface. Its entry is `evctl.tui.app.run`."""
