"""The rules: value in, value out. No IO, no clock, no random number, no log (tests/tidy holds this)."""
