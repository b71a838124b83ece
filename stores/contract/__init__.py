"""The contract of the stores as a test suite, for anybody's store.

What a store has to do is written down as tests, capability by capability, each in a module of its own. To point them at
a store, say in a `conftest.py` how it is opened, and import the capabilities that it has into a test module beside it:

    # conftest.py
    import pytest
    from stores.contract import Backend, MovedClock
    from stores.contract.plugin import *  # the fixtures `clock` and `store`, and the report

    @pytest.fixture
    def backend(clock: MovedClock) -> Backend:
        folder = tempfile.mkdtemp()  # nothing in it, and nobody else's
        return Backend("mine", lambda: (MyLog(folder, clock), MyLeases(folder, clock), Meter()), clock)

    # test_mine.py
    from stores.contract.log import *
    from stores.contract.leases import *

The capabilities:

    checkpoints  expiry  crashes      any checkpoint store: round trips, copies, ids, sizes, two writers, deletion; both
                                      sides of the time limit; the process that ends at each of its backend's calls
    records                           the same, where the test can look into the database: no half of a save is left
    log  heads  leases                a backend: numbered entries and compare-and-append, hints and listing, one holder
    values  history  approvals  lifetimes  bases  faults  prune
                                      what is written once over a log: with a backend of one's own it must work as well

A store that is no log has `checkpoints` of three methods. Its `backend` is any object with the four members of
`Subject`: a name, the clock that it tells the time by, `open`, and `open_dying` for a store whose process ends at one
of its calls, by raising `Crash`.

The clock is moved by the tests: a store that reads another one fails `expiry`. A backend that should be there and is
not fails the test (`missing`): no suite is green because it did not run. At the end the report says how many tests of
each capability ran on each backend. Needs pytest.
"""

import pytest

# So that a failed assertion of a test that is imported from here says what was compared.
pytest.register_assert_rewrite(
    *(
        f"stores.contract.{name}"
        for name in (
            *("approvals", "bases", "checkpoints", "crashes", "expiry", "faults", "heads", "history"),
            *("leases", "lifetimes", "log", "prune", "records", "values"),
        )
    )
)

from stores.contract.backend import START, TTL, Backend, MovedClock, Opened, Recorded, Subject, missing  # noqa: E402
from stores.contract.injection import Crash  # noqa: E402

__all__ = ["START", "TTL", "Backend", "Crash", "MovedClock", "Opened", "Recorded", "Subject", "missing"]
