"""A replica of a service is asked whether it is well: over its port, or by a command beside it."""
