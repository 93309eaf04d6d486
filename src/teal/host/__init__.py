"""The host, its workers, and their clients."""
