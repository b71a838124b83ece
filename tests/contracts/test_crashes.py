"""Crashes at every call, on every backend: see `stores.contract`."""

from stores.contract.crashes import *  # noqa: F403
