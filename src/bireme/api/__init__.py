"""REST and live events on the daemon's unix socket. Decides nothing: it knows who asks, and passes on what they ask."""
