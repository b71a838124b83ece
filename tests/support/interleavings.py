"""Every order in which the calls of several actors to one store can fall."""

from collections.abc import Callable, Iterator, Sequence
from threading import Semaphore, Thread
from typing import Any

Act = Callable[[Any], object]
"""What an actor does with the store that it is given; what it returns or raises is its outcome."""

MOST = 20_000


class _Actor:
    """One actor in a thread of its own, which goes on only when it is told to: each time for one call."""

    def __init__(self, act: Act, store: Any) -> None:
        self.outcome: object = None
        self.over = False
        self._began = False
        self._go, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._run, args=(act, _Seen(store, self)), daemon=True)
        self._thread.start()

    def go(self) -> None:
        self._go.release()
        self._stopped.acquire()

    def stop(self) -> None:
        if self._began:
            self._stopped.release()
            self._go.acquire()
        self._began = True

    def _run(self, act: Act, store: Any) -> None:
        self._go.acquire()
        try:
            self.outcome = act(store)
        except Exception as error:
            self.outcome = error
        self.over = True
        self._stopped.release()


class _Seen:
    """The store as one actor sees it: before each call the others may go first."""

    def __init__(self, store: Any, actor: _Actor) -> None:
        self._store, self._actor = store, actor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._actor.stop()
            return value(*arguments, **options)

        return call if callable(value) else value


def interleavings(begin: Callable[[], tuple[Any, Sequence[Act]]]) -> Iterator[list[object]]:
    """Give the actors' outcomes for each order of their calls; `begin` makes the store and the actors anew for each.

    Depth first: each order repeats the choices of the one before it up to the last one that could have been another.
    """
    choices: list[int] = []
    for _ in range(MOST):
        store, acts = begin()
        actors = [_Actor(act, store) for act in acts]
        widths: list[int] = []
        while ready := [actor for actor in actors if not actor.over]:
            if len(widths) == len(choices):
                choices.append(0)
            ready[choices[len(widths)]].go()
            widths.append(len(ready))
        yield [actor.outcome for actor in actors]
        while choices and choices[-1] == widths[len(choices) - 1] - 1:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1
    raise AssertionError(f"There are more than {MOST} orders.")
