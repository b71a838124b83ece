"""Bases on every backend: see `stores.contract`."""

from stores.contract.bases import *  # noqa: F403
