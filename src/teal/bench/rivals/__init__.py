"""The contenders of the benchmarks: one file each, run by the python that has its libraries installed.

The files here import nothing of Teal, so that the rivals' environment (`.venv-bench`) needs no Teal and Teal's own
environment needs no rival. The bench starts them as `python -m rivals.NAME ROLE CONFIG` with this folder's parent on
PYTHONPATH; `lane.py` is the few lines of protocol they share, `work.py` the work that all of them do.
"""
