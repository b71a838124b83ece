"""History on every backend: see `stores.contract`."""

from stores.contract.history import *  # noqa: F403
