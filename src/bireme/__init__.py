"""Bireme: one crew for a team's GPUs.

`import bireme` stays light on purpose: the command line starts hundreds of times a minute inside jobs. The Python SDK
(`bireme.Client` and its errors) is imported when it is first asked for.
"""

__version__ = "0.1.0"

_LATE = {
    "Client": "bireme.client.sdk",
    "JobHandle": "bireme.client.sdk",
    "JobFailed": "bireme.client.sdk",
    "Service": "bireme.client.services",
    "ServiceFailed": "bireme.client.services",
    "ApiError": "bireme.client.transport",
    "BiremeError": "bireme.client.transport",
    "BiremeUnavailable": "bireme.client.transport",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module 'bireme' has no attribute {name!r}")
    from importlib import import_module  # late, like what it imports

    return getattr(import_module(_LATE[name]), name)
