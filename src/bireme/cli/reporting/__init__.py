"""`bireme report`: how much of what was asked for was used, as text, CSV, JSON and a page of HTML."""
