"""Ducks on a cluster that somebody else runs: one duck a node, placed and restarted by Ray."""

from .cluster import Cluster, Nest, down, up

__all__ = ["Cluster", "Nest", "down", "up"]
