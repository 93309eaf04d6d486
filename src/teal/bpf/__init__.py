"""BPF programs as clients: features in, verdict out, inside the kernel (Linux on a machine that permits bpf(2)).

``Session`` opens a pool to BPF programs, for one model; ``Programs`` compiles, loads and attaches them; ``why_not``
says in one line what keeps this machine from it. Programs include ``teal_bpf.h``, which lies in ``INCLUDE``.
docs/bpf.md has the whole story.
"""

from __future__ import annotations

from teal.bpf.program import Programs
from teal.bpf.session import Session, SessionStatistics
from teal.bpf.toolchain import INCLUDE, compile_program, why_not

__all__ = ["INCLUDE", "Programs", "Session", "SessionStatistics", "compile_program", "why_not"]
