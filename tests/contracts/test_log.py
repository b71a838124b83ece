"""The log of every backend: see `stores.contract`."""

from stores.contract.log import *  # noqa: F403
