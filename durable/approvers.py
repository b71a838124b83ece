"""Who may approve a call, and how many have to.

A principal is a name: that of the IAM user or role that signed a request, of the user whom a trusted caller names, or
of the approver for whom a link was minted. Names are compared as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from durable.errors import ConfigurationError

TOKEN_HOLDER = "holder of a callback token"
"""Who decides by a link that was minted for nobody by name."""

DIRECT = "states:SendTaskSuccess"
"""Who decides by completing the waiting task itself."""

UNKNOWN = "somebody unknown"
"""Who decides where the caller does not say."""

MAX_NAME = 256


def known(by: str | None) -> str | None:
    """The principal behind a vote; None where it is not known, which all of them together may be once."""
    return None if by in (TOKEN_HOLDER, DIRECT, UNKNOWN) else by


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTerms:
    """How many different principals must approve a call, and which ones may decide it: nobody named means everybody.

    A policy returns it where it would return True, for a call that needs more than its tool says. Raises
    `ConfigurationError` for terms that nobody can meet.
    """

    approvals: int = 1
    approvers: Sequence[str] = ()

    def __post_init__(self) -> None:
        count, named = cast(object, self.approvals), cast(object, self.approvers)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigurationError(f"approvals must be a positive whole number, not {count!r}.")
        if isinstance(named, str) or not isinstance(named, Sequence):
            raise ConfigurationError("approvers must be a list of names.")
        object.__setattr__(self, "approvers", names_of(self.approvers))
        if 0 < len(self.approvers) < count:
            raise ConfigurationError(f"{count} approvals cannot come from {len(self.approvers)} approvers.")

    def among(self, approvers: Sequence[str]) -> "ApprovalTerms":
        """These terms, with the approvers that hold where they name none."""
        return self if self.approvers else ApprovalTerms(approvals=self.approvals, approvers=approvers)


def names_of(approvers: Sequence[str]) -> tuple[str, ...]:
    """Give the names as they are kept. Raises `ConfigurationError` for what can be nobody's name, or stands twice."""
    for name in approvers:
        wrong = not isinstance(cast(object, name), str) or not name.isprintable() or name != name.strip()
        if wrong or not 1 <= len(name) <= MAX_NAME:
            raise ConfigurationError(
                f"Approver {name!r} must have 1 to {MAX_NAME} printable characters, without blanks."
            )
        if known(name) is None:
            raise ConfigurationError(f"{name!r} is how somebody unknown is named: it cannot be an approver.")
    if len(set(approvers)) < len(approvers):
        raise ConfigurationError("approvers has a name twice.")
    return tuple(approvers)


ONE_OF_ANY = ApprovalTerms()
