"""`python -m infra.contract_peer`: run the contract on LangGraph's DynamoDB saver, and see that it finds what is known.

The saver lives in an environment of its own under `.local/peers`, made once. Needs DynamoDB Local.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from infra.local import dynamodb_local, make_venv

ROOT: Final = Path(__file__).parents[2]
HOME: Final = ROOT / ".local" / "peers" / "langgraph-checkpoint-aws"
REQUIREMENTS: Final = ROOT / "requirements" / "peers" / "langgraph-checkpoint-aws.txt"
FOUND: Final = ROOT / ".local" / "contract-peer.json"

KNOWN: Final = {
    "a crash between its two writes leaves a checkpoint without content; the reader goes back and says nothing": (
        "test_a_save_that_crashed_has_no_record_or_is_whole"
    ),
    "a write that is too large fails after half of it was made": "test_a_save_that_was_refused_has_no_record",
    "a value larger than an item ends the run": "test_size_is_no_limit",
    "what has expired is given until the database removes it": "test_a_session_is_there_while_its_newest_save_is_fresh",
    "two writers after the same checkpoint both succeed": "test_of_many_savers_one_wins",
    "a writer that was overtaken overwrites": "test_a_writer_that_was_overtaken_writes_nothing",
    "a deleted session comes back with the writer under way": "test_a_delete_stops_the_writer_that_is_under_way",
}
"""Its known faults, and the test that must find each."""


def main() -> str | None:
    """Run it; None when every known fault was found, else what is wrong."""
    if reason := dynamodb_local.install():
        return f"DynamoDB Local is needed: {reason}"
    if not (HOME / ".ready").exists():
        if reason := make_venv.main(str(HOME), str(REQUIREMENTS), "the environment of langgraph-checkpoint-aws"):
            return reason
        (HOME / ".ready").touch()
    FOUND.unlink(missing_ok=True)
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    command = [str(HOME / "bin" / "python"), "-m", "pytest", "infra/contract_peer", *options, "-W", "default"]
    subprocess.run(command, cwd=ROOT, check=False)
    if not FOUND.exists():
        return "The contract did not run."
    failed: list[str] = json.loads(FOUND.read_text())
    print()
    missed = 0
    for fault, test in KNOWN.items():
        found = sum(name.partition("[")[0] == test for name in failed)
        missed += not found
        print(f"{f'found by {found} tests' if found else 'NOT FOUND':>18}: {fault} ({test})")
    return f"The contract has missed {missed} known faults." if missed else None


if __name__ == "__main__":
    sys.exit(main())
