"""Processes that save until they are killed: `python -m tests.stores.saver files|sqlite PATH`.

For each session id on its standard input this process forks one that saves the session in a loop. It prints `pid N`,
`saved STEP` after each save that returned, and `ended STATUS` when the process is gone.
"""

import os
import sys
import traceback
from pathlib import Path

from durable.messages import UserMessage
from durable.records import Status
from stores import LogStore
from stores.contract.samples import checkpoint, with_messages
from stores.files import files_store
from stores.sqlite import sqlite_store

LARGE = "large " * 30_000


def open_store(name: str, path: Path) -> LogStore:
    """Open one of the local stores as a new process does."""
    return files_store(path / "files") if name == "files" else sqlite_store(path / "store.db")


def save_for_ever(store: LogStore, session_id: str) -> None:
    held = store.checkpoints.load(session_id)
    while True:
        step = held.step + 1 if held is not None else 0
        new = checkpoint(session_id) if held is None else with_messages(held, UserMessage(content=f"m{step}"))
        match step % 5:  # every kind of entry, and heads that move
            case 1:
                new = new.but(business_state=LARGE)
            case 2:
                new = new.but(messages=new.messages[-3:], business_state=None)
            case 3:
                new = new.but(status=Status.FINISHED)
            case _:
                new = new.but(status=Status.IN_PROGRESS)
        held = store.checkpoints.save(new.but(step=step), after=held)
        os.write(1, b"saved %d\n" % step)


def main(name: str, path: str) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(open_store(name, Path(path)), line.rstrip("\n"))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.write(1, b"pid %d\n" % child)
        _, status = os.waitpid(child, 0)
        os.write(1, b"ended %d\n" % status)


if __name__ == "__main__":
    main(*sys.argv[1:])
