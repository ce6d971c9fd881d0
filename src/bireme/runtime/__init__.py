"""The loop: events -> apply -> plan -> commands. Knows the ports, never an engine or a database."""
