"""Pruning on every backend: see `stores.contract`."""

from stores.contract.prune import *  # noqa: F403
