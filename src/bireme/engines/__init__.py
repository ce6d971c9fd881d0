"""The engines: each obeys commands in its own world and reports what it sees. None of them decides."""
