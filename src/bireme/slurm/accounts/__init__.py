"""sacctmgr's language: its words as orders to the account book, and its dump files."""
