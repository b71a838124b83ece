"""Approvals on every backend: see `stores.contract`."""

from stores.contract.approvals import *  # noqa: F403
