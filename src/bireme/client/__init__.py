"""The Python SDK over the API. `transport` is the light part that every command uses; `sdk` is `bireme.Client`."""
