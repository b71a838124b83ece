"""What holds for all tests."""

from hypothesis import settings

from stores.contract.plugin import pytest_terminal_summary

# The report of the stores' contract is written where the results of all workers come together, which is here.
__all__ = ["pytest_terminal_summary"]

# How long one example takes says something about the machine, not about the code.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
