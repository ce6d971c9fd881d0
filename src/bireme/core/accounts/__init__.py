"""The account book: orders to it, whose a job is, what was used and what counts."""
