"""How much the tests that search for a counterexample try: all of it, unless somebody is in a hurry."""

import os
from typing import Final

QUICK: Final = os.environ.get("DURABLE_TESTS") == "quick"
"""`make test-unit` sets it. What the README promises is tried in full by `make test`, and so in CI."""


def effort(full: int) -> int:
    """How many of so many examples are tried."""
    return -(-full // 5) if QUICK else full
