"""The state: everything that Bireme knows, the fold of the journal."""
