"""What it means that nobody has decided in time: the call is rejected, the run ends, or somebody else is told first.

@tool(
    needs_approval=True,
    approval_timeout=timedelta(hours=4),
    on_timeout=escalate(level("leads", wait=timedelta(hours=2)), level("cfo", wait=timedelta(hours=8)), then="halt"),
)
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, cast, get_args

from durable.errors import ConfigurationError
from durable.records import Record

OnTimeout = Literal["reject", "halt"]
"""What it means that nobody has decided in time: the call is rejected, or the run ends (`guardrail`)."""


class Level(Record):
    """Who is told next, by the names of channels that a deployment has, and how many seconds they have to decide."""

    to: tuple[str, ...]
    wait: float


@dataclass(frozen=True, slots=True)
class Escalation:
    """The levels that are told one after the other, and what it means that the last one has not decided either."""

    levels: tuple[Level, ...]
    then: OnTimeout = "reject"

    def __post_init__(self) -> None:
        if not self.levels:
            raise ConfigurationError("An escalation needs at least one level.")
        for at, one in enumerate(self.levels, start=1):
            if not one.to or not all(name.strip() and name.isprintable() for name in one.to):
                raise ConfigurationError(f"Level {at} of the escalation must name whom it tells.")
            if not one.wait > 0:
                raise ConfigurationError(f"Level {at} of the escalation: wait must be positive.")
        if self.then not in get_args(OnTimeout):
            raise ConfigurationError(f"An escalation ends with one of {get_args(OnTimeout)!r}, not {self.then!r}.")


def level(*to: str, wait: timedelta) -> Level:
    """Give one level: the channels that are told together, and how long they have to decide.

    A channel is a topic or a webhook of the deployment, by its name there. Raises `ConfigurationError`.
    """
    if not isinstance(cast(object, wait), timedelta):
        raise ConfigurationError(f"The wait of level {to!r} must be a timedelta.")
    if not all(isinstance(name, str) for name in cast("tuple[object, ...]", to)):
        raise ConfigurationError(f"The channels of level {to!r} must be names.")
    return Level(to=to, wait=wait.total_seconds())


def escalate(*levels: Level, then: OnTimeout = "reject") -> Escalation:
    """Give the time-out policy that tells these levels, one after the other, before it rejects or halts.

    Raises `ConfigurationError` for no level, a level that tells nobody, a wait that is not positive.
    """
    return Escalation(levels, then)
