"""The version of this build."""

__version__ = "0.1.0"
