"""Bireme: one crew for a team's GPUs.

`import bireme` stays light on purpose: the command line starts hundreds of times a minute inside jobs. The Python SDK
(`bireme.Client` and its errors) is imported when it is first asked for.
"""

__version__ = "0.1.0"

_FROM_SDK = ("Client", "JobHandle", "JobFailed")
_FROM_TRANSPORT = ("ApiError", "BiremeError", "BiremeUnavailable")


def __getattr__(name: str) -> object:
    if name in _FROM_SDK:
        from bireme.client import sdk

        return getattr(sdk, name)
    if name in _FROM_TRANSPORT:
        from bireme.client import transport

        return getattr(transport, name)
    raise AttributeError(f"module 'bireme' has no attribute {name!r}")
