"""Names as ghOSt's users know them: a policy of the form "drain, pick, commit" runs here with its loop unchanged.

    from teal.agents import ghost

    class Fifo(ghost.BasicDispatchScheduler):
        def Schedule(self, cpu, agent_sw): ...

Theory of operation: a task is a request, a CPU is a worker, the enclave is the pool. Each event of teal.agents.Policy
becomes a message in a channel, and counts up the barrier of its task and of the agent, as a status word shows them.
Whenever a worker can take a decision, ``Schedule`` is called with its CPU: it drains the channel, picks a task, opens
the CPU's transaction with the barriers that it has acted on, and commits it. Commit checks in ghOSt's order and says at
once whether it holds; what it passes is staged for the worker, and the host checks it once more when the worker takes
it. A refusal there comes as MSG_TASK_LATCH_FAILURE.

A transaction may be committed for any CPU, so one Schedule may decide for all of them (a global agent). What is
committed for a CPU that runs something runs there next; to take a CPU from what it runs, give it a slice, or answer
``preempt``. With ``AgentType = ghost.LocalAgent`` each CPU has an agent of its own instead, with a channel and barriers
of its own (``Enclave.MakeChannel``, ``Channel.AssociateTask``, ``Agent.Ping``): ghOSt's per-CPU model. What is
different from ghOSt is said in docs/agents.md.
"""

from teal.agents.ghost.enclave import Agent, Enclave, LocalAgent, RunRequest
from teal.agents.ghost.messages import (
    COMMIT_AT_TXN_COMMIT,
    RTLA_ON_IDLE,
    Channel,
    Message,
    MessageType,
    StatusWord,
    Task,
    TxnState,
)
from teal.agents.ghost.scheduler import BasicDispatchScheduler

__all__ = [
    "COMMIT_AT_TXN_COMMIT",
    "RTLA_ON_IDLE",
    "Agent",
    "BasicDispatchScheduler",
    "Channel",
    "Enclave",
    "LocalAgent",
    "Message",
    "MessageType",
    "RunRequest",
    "StatusWord",
    "Task",
    "TxnState",
]
