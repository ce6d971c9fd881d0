"""What the router decides, without a socket or a clock: heads, bodies, addresses, choice of replica, keys, counting."""
