"""What no store takes, on every backend: see `stores.contract`."""

from stores.contract.values import *  # noqa: F403
