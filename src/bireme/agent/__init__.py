"""The node agent: runs tasks on one node and reports what became of them.

In the embedded engine every virtual node has its own agent process on this machine; on Kubernetes an
agent runs inside the pod. The agent obeys and reports, it never decides: which job runs where is settled
before a command reaches it.

The building blocks (`spawn`, `reaper`, `processes`, `namespaces`, `confinement`, `device_filter`, `gpus`,
`pmi`, `usage`) are small, synchronous and know neither the event loop nor each other's callers. What
strings them together into a server lives beside them.

Invariant: nothing in this package imports an engine, the runtime or the store.
"""
