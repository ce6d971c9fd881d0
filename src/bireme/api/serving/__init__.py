"""The API below the meaning of requests: who may connect, whose turn it is, how answers go out."""
