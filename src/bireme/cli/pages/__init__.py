"""Commands about the pages that people look at in a browser."""
