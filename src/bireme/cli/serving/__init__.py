"""`bireme serve`, `bireme services` and `bireme service ...`: services, from a terminal."""
