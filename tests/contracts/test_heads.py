"""The heads of every backend: see `stores.contract`."""

from stores.contract.heads import *  # noqa: F403
