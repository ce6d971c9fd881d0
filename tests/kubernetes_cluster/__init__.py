"""A real Kubernetes for tests and benchmarks, taken up and down by them: control plane, real kubelets, fake nodes.

`cluster.py` is the way in. Everything is built from Go modules (`modules/`) into the user's cache folder by
`binaries.py`, runs as children of one keeper process (`keeper.py`) that ends them when its owner is gone, and talks
over loopback or over a bridge and network namespaces of its own. What cannot run on this machine is said by
`cluster.missing()` in one line, for a skip.
"""
