"""One approval: a small stream of events on the log, from the question to what came of it.

requested, token attached, reminded, escalated, voted | expired | cancelled, applied: who and when stands on each. What
was decided, which level it is at and until when are computed from the events and never stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from durable.approvers import UNKNOWN, known
from durable.escalation import Level, OnTimeout
from durable.records import Checkpoint, Decision, Record, Timestamp


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"


class Requested(Record):
    """A run asks for a decision on one call. Repeated for the same approval, it only renews the deadline.

    A call of kind `question` wants an answer; `default` is the one that counts when nobody gives any.

    Where a sub-agent asks, `path` names the agents from `agent` to it, and `within` the calls that run them. `edited`
    are arguments that an earlier decision about the same call had put in the place of the model's. `approvals` is how
    many principals must approve, `approvers` who may decide (none: everybody). `deadline` ends the first wait; then
    each of the `levels` is told and has its own, and `on_timeout` comes after the last. `remind_every` is in seconds;
    None: nobody is reminded. `snapshot` is the paused run itself, of a run without a session: it is kept nowhere else.
    """

    event: Literal["requested"] = "requested"
    kind: Literal["approval", "question"] = "approval"
    at: Timestamp
    session_id: str | None
    run_id: str
    agent: str
    path: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    call_id: str
    tool_name: str
    arguments: JsonValue
    edited: dict[str, JsonValue] | None = None
    digest: str
    requested_by: str | None = None
    approvals: int = 1
    approvers: tuple[str, ...] = ()
    deadline: Timestamp | None = None
    on_timeout: OnTimeout = "reject"
    levels: tuple[Level, ...] = ()
    default: str | None = Field(default=None, repr=False)
    remind_every: float | None = None
    snapshot: Checkpoint | None = Field(default=None, repr=False)

    @property
    def asking(self) -> tuple[str, ...]:
        """The names of the agents from the run's own to the one that asks."""
        return self.path or (self.agent,)


class Reminded(Record):
    """People were told once more that a decision is wanted."""

    event: Literal["reminded"] = "reminded"
    at: Timestamp


class Escalated(Record):
    """Nobody had decided in time: the channels in `to` are told, as `level` (1 is the first), and the wait begins anew.

    It stands on the record before they are told: a process that dies in between leaves them to be told by the next.
    """

    event: Literal["escalated"] = "escalated"
    at: Timestamp
    level: int
    to: tuple[str, ...]


class TokenAttached(Record):
    """An execution waits for the decision. Callback tokens are kept as SHA-256, the task token as it is.

    `callbacks` maps the hash of each token to the approver it was minted for (None: whoever has the token).
    """

    event: Literal["token-attached"] = "token-attached"
    at: Timestamp
    task_token: str = Field(repr=False)
    callbacks: dict[str, str | None] = Field(repr=False)


class Voted(Record):
    """One principal says yes or no to the arguments of this `digest`; `args` are those that it puts in their place.

    Where it is a question, yes has an `answer`, and no declines to give one.
    """

    event: Literal["voted"] = "voted"
    at: Timestamp
    approved: bool
    note: str | None = None
    args: dict[str, JsonValue] | None = None
    answer: str | None = Field(default=None, repr=False)
    digest: str
    by: str | None = None
    via: str
    callback: str | None = Field(default=None, repr=False, description="Hash of the callback token that this used up.")


class Expired(Record):
    event: Literal["expired"] = "expired"
    at: Timestamp


class Cancelled(Record):
    event: Literal["cancelled"] = "cancelled"
    at: Timestamp
    by: str | None = None


class Applied(Record):
    event: Literal["applied"] = "applied"
    at: Timestamp


ApprovalEvent = Annotated[
    Requested | Reminded | Escalated | TokenAttached | Voted | Expired | Cancelled | Applied,
    Field(discriminator="event"),
]


@dataclass(frozen=True, slots=True)
class Ballot:
    """How the votes stand.

    `arguments` are those that are voted on, of which `digest` is the hash; `edited` is the vote that put them in the
    place of the model's. `approving` are the votes for them, one of each principal; `closing` is what ended the voting.
    """

    arguments: JsonValue = field(default=None, repr=False)
    digest: str = ""
    edited: Voted | None = None
    approving: tuple[Voted, ...] = ()
    missing: int = 1
    closing: Voted | Expired | Cancelled | None = None

    def vote_of(self, by: str | None) -> Voted | None:
        """The vote for these arguments by a principal; all who are not known share one."""
        return next((vote for vote in self.approving if known(vote.by) == known(by)), None)


def count(events: "Sequence[ApprovalEvent]") -> Ballot:
    """Count the votes, in the order in which they were recorded.

    1. one rejection rejects; a time-out or a cancellation closes as well, and nothing counts after that
    2. arguments that were put in place of others start the votes anew
    3. what is asked again about the same arguments keeps its votes
    """
    asked, needed, ballot = "", 1, Ballot()
    for event in events:
        match event:
            case Requested():
                needed = event.approvals
                if event.digest != asked:
                    asked, ballot = event.digest, Ballot(event.arguments, event.digest)
            case Voted(approved=True):
                if event.args is not None:
                    kept = ballot.approving if event.digest == ballot.digest else ()
                    ballot = Ballot(event.args, event.digest, edited=event, approving=kept)
                if event.digest == ballot.digest and ballot.vote_of(event.by) is None:
                    ballot = replace(ballot, approving=(*ballot.approving, event))
                if len(ballot.approving) >= needed:
                    return replace(ballot, missing=0, closing=event)
            case Voted() | Expired() | Cancelled():
                return replace(ballot, missing=max(0, needed - len(ballot.approving)), closing=event)
            case Reminded() | Escalated() | TokenAttached() | Applied():
                pass
    return replace(ballot, missing=max(0, needed - len(ballot.approving)))


class Approval(Record):
    """One approval: its stream of events, folded. What was decided is computed from the votes, never stored."""

    id: str
    revision: int
    events: tuple[ApprovalEvent, ...]

    @property
    def request(self) -> Requested:
        """The request as it stands: the newest, since a repeated pause renews the deadline."""
        return next(event for event in reversed(self.events) if isinstance(event, Requested))

    @property
    def ballot(self) -> Ballot:
        """How the votes stand."""
        return count(self.events)

    @property
    def status(self) -> ApprovalStatus:
        match self.ballot.closing:
            case None:
                return ApprovalStatus.PENDING
            case Voted(approved=True):
                return ApprovalStatus.APPROVED
            case Voted():
                return ApprovalStatus.REJECTED
            case Expired():
                return ApprovalStatus.EXPIRED
            case Cancelled():
                return ApprovalStatus.CANCELLED

    @property
    def decision(self) -> Decision | None:
        """The decision that the run applies; None while it is open. A time-out rejects, and says that it was one."""
        ballot = self.ballot
        match ballot.closing:
            case None:
                return None
            case Voted() as vote:
                several = vote.approved and len(ballot.approving) > 1
                return Decision(
                    approval_id=self.id,
                    approved=vote.approved,
                    note=vote.note,
                    args=self._args(ballot) if vote.approved else None,
                    answer=vote.answer,
                    by=vote.by,
                    voters=tuple(one.by or UNKNOWN for one in ballot.approving) if several else (),
                    via=vote.via,
                    digest=vote.digest,
                    decided_at=vote.at,
                )
            case Expired(at=at) if (default := self.request.default) is not None:
                return Decision(approval_id=self.id, approved=True, answer=default, via="timeout", decided_at=at)
            case Expired(at=at):
                return Decision(
                    approval_id=self.id, approved=False, note="No decision in time.", via="timeout", decided_at=at
                )
            case Cancelled(at=at, by=by):
                return Decision(approval_id=self.id, approved=False, by=by, via="cancelled", decided_at=at)

    @property
    def told(self) -> bool:
        """Whether the people of its level were asked about the arguments as they are now: nobody was since somebody has
        edited them, or since the level is on the record."""
        edited = self.ballot.edited
        news = (at for at, one in enumerate(self.events) if one is edited or isinstance(one, Escalated))
        newest = max(news, default=-1)
        return newest < 0 or any(isinstance(event, TokenAttached) for event in self.events[newest:])

    @property
    def to_tell(self) -> tuple[str | None, ...]:
        """Who is wanted to vote: each named approver who has not, or whoever may (None) where nobody is named."""
        named = self.request.approvers
        return tuple(name for name in named if self.ballot.vote_of(name) is None) if named else (None,)

    @property
    def halts(self) -> bool:
        """Whether nobody decided in time about a call that ends its run then."""
        expired = self.status is ApprovalStatus.EXPIRED and self.request.default is None
        return expired and self.request.on_timeout == "halt"

    @property
    def escalations(self) -> tuple[Escalated, ...]:
        """Who was told since the request as it stands: one that is repeated begins with its first people again."""
        asked = max(at for at, event in enumerate(self.events) if isinstance(event, Requested))
        return tuple(event for event in self.events[asked:] if isinstance(event, Escalated))

    @property
    def level(self) -> int:
        """How many levels were told beside the first people."""
        return len(self.escalations)

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels of the level that it is at; none for the first people."""
        return self.escalations[-1].to if self.escalations else ()

    @property
    def deadline(self) -> datetime | None:
        """When the wait of the level that it is at ends; a level's wait begins when that is on the record."""
        if not self.escalations:
            return self.request.deadline
        return self.escalations[-1].at + timedelta(seconds=self.request.levels[self.level - 1].wait)

    @property
    def closes_at(self) -> datetime | None:
        """When it expires, if nobody decides and every level is told in time."""
        left = sum(one.wait for one in self.request.levels[self.level :])
        return self.deadline + timedelta(seconds=left) if self.deadline is not None else None

    @property
    def next_reminder(self) -> datetime | None:
        """When people should be told again: `remind_every` after the last time, if that is before the deadline."""
        every, deadline = self.request.remind_every, self.deadline
        if every is None:
            return None
        telling = Requested | Reminded | Escalated
        last = next(event.at for event in reversed(self.events) if isinstance(event, telling))
        due = last + timedelta(seconds=every)
        return due if deadline is None or due < deadline else None

    @property
    def applied(self) -> bool:
        return any(isinstance(event, Applied) for event in self.events)

    @property
    def task_token(self) -> str | None:
        """The newest task token, or None when no execution waits."""
        tokens = (event.task_token for event in reversed(self.events) if isinstance(event, TokenAttached))
        return next(tokens, None)

    def callback_approver(self, token_hash: str) -> tuple[bool, str | None]:
        """Whether the token of this hash was minted for this approval, and for whom."""
        for event in self.events:
            if isinstance(event, TokenAttached) and token_hash in event.callbacks:
                return True, event.callbacks[token_hash]
        return False, None

    def late_by(self, now: datetime) -> bool:
        """Whether the wait of its level is over: the next one is to be told, or it expires."""
        return self.deadline is not None and now >= self.deadline

    def due_by(self, now: datetime) -> bool:
        """Whether the last level's deadline has come. At that deadline no vote counts any more."""
        return self.late_by(now) and self.level == len(self.request.levels)

    def next_level(self, now: datetime) -> Escalated:
        """The event that tells the next level, which there must be."""
        return Escalated(at=now, level=self.level + 1, to=self.request.levels[self.level].to)

    def _args(self, ballot: Ballot) -> dict[str, JsonValue] | None:
        return self.request.edited if ballot.edited is None else ballot.edited.args
