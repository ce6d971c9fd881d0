"""The Kubernetes engine: a real cluster whose pods Bireme creates, binds and takes back."""
