"""The API server: requests, watches, copies of what it holds, and patience with it."""
