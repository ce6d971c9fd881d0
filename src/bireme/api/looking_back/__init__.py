"""One job with all that is known of it: over time (`timelines`, `logged`), and why it ended (`testimony`)."""
