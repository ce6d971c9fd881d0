"""The router of services: HTTP requests in, replicas' answers out, beside the daemon and without it.

A process family of its own (`python -m bireme.router --home FOLDER`): a supervisor that the daemon talks to
(`messages`), and workers that share the port. It routes by the last table it was given, which is on its disk, and tells
what it sees: load, requests that wait for a service without replicas, replicas that do not answer. It decides nothing
about replicas.

Invariant: nothing in this package imports the daemon, the API, the runtime, an engine or the store; and nothing but the
processes of the router imports anything of it besides `messages`.
"""
