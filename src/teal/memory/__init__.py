"""Shared memory as people meet it: tensors and the report of what is still on loan."""
