"""bireme timeline: one job over time, in the terminal, as JSON, or as a page that needs no network."""
