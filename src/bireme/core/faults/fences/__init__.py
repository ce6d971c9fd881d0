"""Fences as a kind: a GPU or a node out of service, decided from findings, held by a circuit breaker, lifted."""
