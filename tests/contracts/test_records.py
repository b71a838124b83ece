"""No half of a save, on every backend: see `stores.contract`."""

from stores.contract.records import *  # noqa: F403
