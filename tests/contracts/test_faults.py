"""Faults at the log, on every backend: see `stores.contract`."""

from stores.contract.faults import *  # noqa: F403
