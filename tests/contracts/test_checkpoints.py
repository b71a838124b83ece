"""Checkpoints on every backend: see `stores.contract`."""

from stores.contract.checkpoints import *  # noqa: F403
