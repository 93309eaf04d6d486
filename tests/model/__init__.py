"""Models of the core's protocols and the explorer that checks them: README.md beside this file."""
