"""Where a run sleeps: checkpoints, history, approvals and leases over a log, one file for each backend."""

from stores._bundle import LogStore
from stores.approvals import LogApprovals
from stores.checkpoints import LogCheckpoints
from stores.memory import memory_store

__all__ = ["LogApprovals", "LogCheckpoints", "LogStore", "memory_store"]
