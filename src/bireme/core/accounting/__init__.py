"""Who is in the book, what was used and what it cost."""
