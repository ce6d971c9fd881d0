"""The node agent: runs tasks on one node and reports what became of them.

In the embedded engine every virtual node has its own agent process on this machine; on Kubernetes an
agent runs inside the pod. The agent obeys and reports, it never decides: which job runs where is settled
before a command reaches it.

The building blocks are small, synchronous and know neither the event loop nor who calls them: `spawn`,
`identity`, `output` (start a task, as whom, on which files), `reaper`, `processes`, `usage` (how it ended, what
is left of it, what it used), `namespaces` (a virtual node's names), `confinement` over `hierarchy` and
`device_filter` (cgroups), `gpus` over `nvml` and `kfd`, `pmi` (MPI programs). What strings them together into
a server lives beside them.

Invariant: nothing in this package imports an engine, the runtime or the store.
"""
