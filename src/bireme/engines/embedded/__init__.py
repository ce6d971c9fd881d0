"""The embedded engine: this machine, from one install. Its nodes are agent processes (`bireme.agent`)."""

from bireme.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
