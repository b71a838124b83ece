"""Lifetimes of what a session is made of, on every backend: see `stores.contract`."""

from stores.contract.lifetimes import *  # noqa: F403
