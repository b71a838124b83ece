"""Expiry on every backend: see `stores.contract`."""

from stores.contract.expiry import *  # noqa: F403
