"""The pages that people look at: a process of its own that knows the daemon by its API alone."""
