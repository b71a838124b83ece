"""The leases of every backend: see `stores.contract`."""

from stores.contract.leases import *  # noqa: F403
