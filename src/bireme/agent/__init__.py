"""The node agent: runs tasks on one node and reports what became of them.

In the embedded engine every virtual node has its own agent process on this machine; on Kubernetes an
agent runs inside the pod. The agent obeys and reports, it never decides: which job runs where is settled
before a command reaches it.

Its rooms are small, synchronous, and know nothing of those above them (`.importlinter` has the order): `system`,
`messages`, `devices`, `confining`, `starting`, `stdio`, `mpi`, `keeping`. What strings them together lives beside
them: `jobs` and `steps` on a `node`, the `server` that takes orders for them, `birth`, and a predecessor's `leftovers`.

Invariant: nothing in this package imports an engine, the runtime or the store.
"""
