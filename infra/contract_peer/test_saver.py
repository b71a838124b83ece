"""What the contract says of the saver. Its failures are expected: `python -m infra.contract_peer` knows which."""

from stores.contract.checkpoints import *  # noqa: F403
from stores.contract.crashes import *  # noqa: F403
from stores.contract.expiry import *  # noqa: F403
from stores.contract.records import *  # noqa: F403
