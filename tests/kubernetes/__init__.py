"""Bireme on Kubernetes, for real: one cluster (`conftest.py`) that all modules of this folder share.

Whoever changes the cluster changes it back: nodes that lose power get it again, namespaces and rules are removed.
"""
