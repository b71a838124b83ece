"""Faults at the log, for tests: they stand between a store and its backend."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from durable.errors import StoreUnavailableError
from durable.ports import Entry, Head, Log, Page


class Crash(BaseException):
    """The process ends here: nothing may catch this."""


class Wrapped:
    """A log that hands every call to another one through `_around`."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def _around(self, call: Callable[[], Any], name: str) -> Any:
        return call()

    def append(self, stream: str, entry: Entry) -> bool:
        return self._around(lambda: self._log.append(stream, entry), "append")

    def read(
        self, stream: str, *, after: int = -1, newest_first: bool = False, limit: int | None = None
    ) -> Iterable[Entry]:
        return self._around(
            lambda: list(self._log.read(stream, after=after, newest_first=newest_first, limit=limit)), "read"
        )

    def drop(self, stream: str, *, until: int | None = None) -> None:
        self._around(lambda: self._log.drop(stream, until=until), "drop")

    def expire(self, stream: str, *, until: int, fresh_until: datetime, expires_at: datetime) -> None:
        self._around(
            lambda: self._log.expire(stream, until=until, fresh_until=fresh_until, expires_at=expires_at), "expire"
        )

    def head(self, stream: str) -> Head | None:
        return self._around(lambda: self._log.head(stream), "head")

    def mark(self, head: Head) -> None:
        self._around(lambda: self._log.mark(head), "mark")

    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None:
        self._around(lambda: self._log.announce(stream, run_id=run_id, due_at=due_at), "announce")

    def settle(self, head: Head) -> None:
        self._around(lambda: self._log.settle(head), "settle")

    def heads(self, kind: str, **arguments: Any) -> Page[Head]:
        return self._around(lambda: self._log.heads(kind, **arguments), "heads")


class CrashingLog(Wrapped):
    """Ends the process at one call, before it is applied or right after: the call numbered `after`, from 0."""

    def __init__(self, log: Log, *, after: int | None = None, applied: bool = False) -> None:
        super().__init__(log)
        self.arm(after, applied=applied)

    def arm(self, after: int | None, *, applied: bool) -> None:
        """Count from now on; None lets every call pass."""
        self._left = after
        self._applied = applied

    def _around(self, call: Callable[[], Any], name: str) -> Any:
        if self._left is None or self._left > 0:
            self._left = None if self._left is None else self._left - 1
            return call()
        if self._applied:
            call()
        raise Crash


class LostResponse(Wrapped):
    """Applies every call and loses the response of the first `times` of those named."""

    def __init__(self, log: Log, *names: str, times: int = 1) -> None:
        super().__init__(log)
        self.lose(*names, times=times)

    def lose(self, *names: str, times: int = 1) -> None:
        """Lose the next responses to calls of these names."""
        self._names = names
        self._times = times

    def _around(self, call: Callable[[], Any], name: str) -> Any:
        if name not in self._names or self._times == 0:
            return call()
        self._times -= 1
        self._lost(call)
        raise StoreUnavailableError(name, "no response")

    def _lost(self, call: Callable[[], Any]) -> None:
        call()


class LostRequest(LostResponse):
    """Loses the request itself: nothing is applied."""

    def _lost(self, call: Callable[[], Any]) -> None:
        pass


class CountingLog(Wrapped):
    """Notes the name of every call."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.calls: list[str] = []

    def _around(self, call: Callable[[], Any], name: str) -> Any:
        self.calls.append(name)
        return call()


class LaggingReplica(Wrapped):
    """A replica to which some entries have not come yet, for the first `reads` reads (None: for ever)."""

    def __init__(self, log: Log, *, hides: Callable[[Entry], bool], reads: int | None = None) -> None:
        super().__init__(log)
        self._hides = hides
        self._reads = reads

    def _around(self, call: Callable[[], Any], name: str) -> Any:
        result = call()
        if name != "read" or self._reads == 0:
            return result
        self._reads = None if self._reads is None else self._reads - 1
        return [entry for entry in result if not self._hides(entry)]
