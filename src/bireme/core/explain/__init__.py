"""Reasons in words, for people. Made from the facts that the deciding code left, never worked out again."""
