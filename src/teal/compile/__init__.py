"""``torch.compile(model, backend="teal")``: graphs of PyTorch programs as resident kernels. See docs/compile.md.

``teal.compile.statistics()`` says what became of them: how many are resident, what fell back and why. Importing this
needs no torch; torch finds the backend itself (entry point "torch_dynamo_backends" in pyproject.toml).
"""

from teal.compile.record import CompileStatistics, statistics

__all__ = ["CompileStatistics", "statistics"]
