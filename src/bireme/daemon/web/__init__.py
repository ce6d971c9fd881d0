"""The daemon's side of the pages: the process that serves them is started, watched and ended here."""
