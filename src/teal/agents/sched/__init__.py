"""The shipped policies in Python, one file each: the same decisions as the core's (core/agents/policies), to read, to
change, and to check the core against."""
