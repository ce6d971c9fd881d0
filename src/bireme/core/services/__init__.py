"""Services, their revisions and replicas, as kinds: what may happen to them, and what they need next."""
