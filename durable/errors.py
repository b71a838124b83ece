"""Every error this package raises on purpose.

    DurableError
    ├── ConfigurationError              the code or the call is wrong: fix it
    │   ├── InvalidInputError           the input cannot start or continue a run
    │   ├── InvalidSessionIdError
    │   ├── ResumeToolMissingError      a pending call names a tool the agent no longer has
    │   └── AgentDriftError             the agent is not the one that started the run
    ├── SessionError
    │   ├── SessionNotFoundError
    │   ├── SessionExistsError          the name for a new session is taken
    │   ├── CheckpointNotFoundError     the history does not list this step or revision
    │   ├── SessionAwaitingApprovalError  decide the approval first
    │   ├── SessionBusyError            another run holds the session: retry
    │   ├── TurnPendingError            the last turn is not finished: resume it first
    │   ├── WaitAbortedError            told to stop while it waited for its turn: nothing was accepted
    │   ├── RequestConflictError        the request's key came before, with another body
    │   └── ResultExpiredError          the recorded answer to a request is not kept any more
    ├── ApprovalError
    │   ├── ApprovalNotFoundError
    │   ├── ApprovalClosedError         expired, cancelled or orphaned: it cannot be decided any more
    │   ├── InvalidDecisionError        e.g. edited arguments that do not validate
    │   ├── ArgumentsChangedError       look at the arguments again: somebody has edited them
    │   ├── NotAnApproverError          others were named to decide it
    │   └── SelfApprovalError           somebody else has to approve
    ├── StoreError
    │   ├── StaleCheckpointError        somebody else moved the session: load again
    │   ├── LeaseLostError              another process has taken the session over
    │   ├── StaleReplicaError           the reader looks at the past: retry
    │   ├── StoreUnavailableError       throttled, timed out, 5xx: retry
    │   ├── StoreRejectedError          access denied, no such table: fix the deployment
    │   └── RecordFormatError           not JSON, damaged, or written by a newer version
    ├── ToolError
    │   └── PropagatingToolError        raised by a tool to end the run instead of telling the model
    └── ProviderError
        ├── ProviderAuthenticationError     401, 403: the key
        ├── ProviderSetupError              no such model, no balance, a wrong option: fix the deployment
        ├── ProviderRequestError            the provider refuses this transcript, now and later
        │   ├── ProviderContextLengthError  it is too long for the model
        │   └── ProviderRefusedError        its policy forbids what was said
        ├── ProviderRateLimitError          retry, after `retry_after` seconds where the provider said so
        ├── ProviderUnavailableError        5xx, connection: retry
        │   ├── ProviderOverloadedError     everybody is asking: retry later
        │   ├── ProviderTimeoutError        no answer in time
        │   └── ProviderStreamError         a stream ended before its last event
        └── ProviderResponseError           the answer is not of the protocol's shape

Each has a stable `code`, a `hint` that says what to do, and `retryable`: whether the same call may succeed later.
Messages carry ids, never message bodies, tool arguments or tokens.
"""

from collections.abc import Iterable
from datetime import datetime

from durable.durable_error import DurableError as DurableError
from durable.provider_errors import ProviderAuthenticationError as ProviderAuthenticationError
from durable.provider_errors import ProviderContextLengthError as ProviderContextLengthError
from durable.provider_errors import ProviderError as ProviderError
from durable.provider_errors import ProviderOverloadedError as ProviderOverloadedError
from durable.provider_errors import ProviderRateLimitError as ProviderRateLimitError
from durable.provider_errors import ProviderRefusedError as ProviderRefusedError
from durable.provider_errors import ProviderRequestError as ProviderRequestError
from durable.provider_errors import ProviderResponseError as ProviderResponseError
from durable.provider_errors import ProviderSetupError as ProviderSetupError
from durable.provider_errors import ProviderStreamError as ProviderStreamError
from durable.provider_errors import ProviderTimeoutError as ProviderTimeoutError
from durable.provider_errors import ProviderUnavailableError as ProviderUnavailableError


class ConfigurationError(DurableError):
    """The agent, the deployment or the call is put together wrongly."""

    code = "CONFIGURATION"
    hint = "Fix the option or the call that the message names."


class InvalidInputError(ConfigurationError):
    """What was said cannot start a run or be added to one."""

    code = "INPUT_INVALID"
    hint = "Send what the message asks for; the session is as it was."


class InvalidSessionIdError(ConfigurationError):
    """A session id that is empty, too long, not a string or has control characters (SEMANTICS: names, ids, limits)."""

    code = "SESSION_ID_INVALID"
    hint = "Use 1 to 256 characters of valid Unicode without control characters."

    def __init__(self, reason: str) -> None:
        super().__init__(f"The session id {reason}.")


class ResumeToolMissingError(ConfigurationError):
    """A call that waits for its result names a tool that the agent does not have any more."""

    code = "RESUME_TOOL_MISSING"
    hint = "Resume with an agent that has the tool; the checkpoint was left as it was."

    def __init__(self, session_id: str | None, tool_names: Iterable[str]) -> None:
        self.session_id = session_id
        self.tool_names = tuple(tool_names)
        super().__init__(f"Session {session_id!r} has pending calls of tools that are gone: {list(self.tool_names)!r}.")


class AgentDriftError(ConfigurationError):
    """The agent that resumes is not the one that started the run, and its policy is `error`."""

    code = "AGENT_DRIFT"
    hint = "Resume with the agent that started the run, or set on_agent_drift; everything was left as it was."

    def __init__(self, session_id: str | None, differences: str) -> None:
        self.session_id = session_id
        self.differences = differences
        super().__init__(f"Session {session_id!r} was started by another agent: {differences}.")


class SessionError(DurableError):
    """The session is not in a state that allows the call."""

    code = "SESSION"


class SessionNotFoundError(SessionError):
    code = "SESSION_NOT_FOUND"
    hint = "Check the id; a session is gone when it was deleted or has expired."

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"There is no session {session_id!r}.")


class SessionExistsError(SessionError):
    code = "SESSION_EXISTS"
    hint = "Choose another id for the new session, or leave it out; nothing was written."

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"There is a session {session_id!r} already.")


class CheckpointNotFoundError(SessionError):
    """A step that never ran, or that the history does not list any more. `steps` and `revisions` are those it lists."""

    code = "CHECKPOINT_NOT_FOUND"
    hint = "Choose a step that the history lists: the message names them."

    def __init__(self, session_id: str, wanted: str, *, steps: Iterable[int], revisions: Iterable[int]) -> None:
        self.session_id = session_id
        self.steps = tuple(steps)
        self.revisions = tuple(revisions)
        there = f"steps {', '.join(map(str, self.steps))}" if self.steps else "no steps at all"
        if self.revisions:
            there += f" (revisions {min(self.revisions)} to {max(self.revisions)})"
        super().__init__(f"The history of session {session_id!r} does not list {wanted}: it has {there}.")


class SessionAwaitingApprovalError(SessionError):
    """New input must not bypass a pending decision."""

    code = "SESSION_AWAITING_APPROVAL"
    hint = "Decide the approval first, then send the message again."

    def __init__(self, session_id: str | None, approval_id: str | None) -> None:
        self.session_id = session_id
        self.approval_id = approval_id
        super().__init__(f"Session {session_id!r} waits for approval {approval_id!r}.")


class SessionBusyError(SessionError):
    """Another request or execution is running this session."""

    code = "SESSION_BUSY"
    hint = "Send the request again after `retry_after` seconds."
    retryable = True

    def __init__(self, session_id: str, *, busy_until: datetime, retry_after: int) -> None:
        self.session_id = session_id
        self.busy_until = busy_until
        self.retry_after = retry_after
        super().__init__(f"Session {session_id!r} is being run by somebody else, at most until {busy_until:%FT%TZ}.")


class TurnPendingError(SessionError):
    """A conversation is cut and copied between two turns, not in one."""

    code = "TURN_PENDING"
    hint = "Resume the turn, or send a message that goes on from it; the session is as it was."

    def __init__(self, session_id: str, run_id: str) -> None:
        self.session_id = session_id
        self.run_id = run_id
        super().__init__(f"Session {session_id!r} has an unfinished turn: run {run_id!r}.")


class WaitAbortedError(SessionError):
    """The signal came while the session was somebody else's, or before anything was done."""

    code = "WAIT_ABORTED"
    hint = "Nothing was accepted: send the message again if it is still wanted."

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"The call was aborted before session {session_id!r} was its own.")


class RequestConflictError(SessionError):
    """A key names one request for ever: the same key with another body is a mistake of the caller."""

    code = "IDEMPOTENCY_KEY_REUSED"
    hint = "Use a new key for a new request, and the same body when you send one again."

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"Session {session_id!r} has accepted this key before, with another body.")


class ResultExpiredError(SessionError):
    """The run of a request is over and its answer has left the transcript. It is never run again."""

    code = "RESULT_EXPIRED"
    hint = "The request was carried out; only its answer is gone. Send a new request with a new key."

    def __init__(self, session_id: str, run_id: str) -> None:
        self.session_id = session_id
        self.run_id = run_id
        super().__init__(f"The answer of run {run_id!r} of session {session_id!r} is not kept any more.")


class ApprovalError(DurableError):
    """The approval does not allow the call."""

    code = "APPROVAL"


class ApprovalNotFoundError(ApprovalError):
    code = "APPROVAL_NOT_FOUND"
    hint = "Check the id; list the pending ones to find the one you mean."

    def __init__(self, approval_id: str) -> None:
        self.approval_id = approval_id
        super().__init__(f"There is no approval {approval_id!r}.")


class ApprovalClosedError(ApprovalError):
    """A decision that comes too late, or for a call that the session does not wait on."""

    code = "APPROVAL_CLOSED"
    hint = "Nothing to do: look at the session for how it went on."

    def __init__(self, approval_id: str, status: str) -> None:
        self.approval_id = approval_id
        self.status = status
        super().__init__(f"Approval {approval_id!r} is {status} and cannot be decided.")


class InvalidDecisionError(ApprovalError):
    code = "DECISION_INVALID"
    hint = "Correct the decision and send it again; nothing was recorded."

    def __init__(self, approval_id: str, reason: str, options: list[str] | None = None) -> None:
        self.approval_id = approval_id
        self.reason = reason
        self.options = options
        super().__init__(f"The decision on approval {approval_id!r} was not recorded: {reason}.")


class ArgumentsChangedError(ApprovalError):
    """A vote for arguments in whose place somebody has put others. It counts for neither."""

    code = "ARGUMENTS_CHANGED"
    hint = "Look at the approval again, and send the decision with the `digest` of the arguments that it shows."

    def __init__(self, approval_id: str) -> None:
        self.approval_id = approval_id
        super().__init__(f"The arguments of approval {approval_id!r} were changed: this vote is not for them.")


class NotAnApproverError(ApprovalError):
    """The approval names who may decide it, and this is somebody else. Nothing was recorded."""

    code = "NOT_AN_APPROVER"
    hint = "Let one of its `approvers` decide: by the link that was sent to them, or through the API under that name."

    def __init__(self, approval_id: str, by: str | None) -> None:
        self.approval_id = approval_id
        self.by = by
        self.reason = f"it is not for {'somebody unknown' if by is None else repr(by)} to decide"
        super().__init__(f"The decision on approval {approval_id!r} was not recorded: {self.reason}.")


class SelfApprovalError(ApprovalError):
    """Approvers are separate from requesters here, and this would not be. Nothing was decided."""

    code = "SELF_APPROVAL"
    hint = "Let somebody else approve it, through the API under their own name. Rejecting is open to everybody."

    def __init__(self, approval_id: str, reason: str) -> None:
        self.approval_id = approval_id
        self.reason = reason
        super().__init__(f"Approval {approval_id!r} cannot be given: {reason}.")


class StoreError(DurableError):
    """The store could not do what was asked."""

    code = "STORE"


class StaleCheckpointError(StoreError):
    """The session has moved since the caller loaded it. Nothing was written."""

    code = "STALE_CHECKPOINT"
    hint = "Another writer won. Load the session again and decide on what it says now."

    def __init__(self, session_id: str, revision: int) -> None:
        self.session_id = session_id
        self.revision = revision
        super().__init__(f"Revision {revision} of session {session_id!r} was written by somebody else.")


class LeaseLostError(StoreError):
    """Another process holds the session's lease now. The run goes on there; here it has stopped without a save."""

    code = "LEASE_LOST"
    hint = "Look at the session: whoever holds it carries the run on."

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"The lease of session {session_id!r} was taken over by another process.")


class StaleReplicaError(StoreError):
    """Entries are missing that the store has promised: this is a replica that has not caught up."""

    code = "STALE_REPLICA"
    hint = "Try again; if it stays, read in the deployment's write region."
    retryable = True

    def __init__(self, stream: str, *, expected: int, found: int) -> None:
        self.stream = stream
        self.expected = expected
        self.found = found
        super().__init__(f"{stream!r} should have revision {expected}, but only {found} is readable.")


class StoreUnavailableError(StoreError):
    """The backend is throttling, timing out or failing. It is not known whether the last write was applied."""

    code = "STORE_UNAVAILABLE"
    hint = "Try again; what was saved before is safe."
    retryable = True

    def __init__(self, operation: str, reason: str) -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(f"The store did not answer {operation}: {reason}.")


class StoreRejectedError(StoreError):
    """The backend refuses: no permission, no such table, a value it cannot take. Retrying does not help."""

    code = "STORE_REJECTED"
    hint = "Fix the deployment: the message names the operation and the backend's reason."

    def __init__(self, operation: str, reason: str) -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(f"The store refused {operation}: {reason}.")


class RecordFormatError(StoreError):
    """A record that this version cannot read or write."""

    code = "RECORD_FORMAT"
    hint = "A newer format needs a newer version of this package; anything else is damage or a value that is not JSON."

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}.")


class ToolError(DurableError):
    """A tool may raise this (or anything else): the model sees it as an error result."""

    code = "TOOL"


class PropagatingToolError(ToolError):
    """Raised by a tool to end the run with this error instead of showing it to the model."""

    code = "TOOL_PROPAGATED"
    hint = "The tool asked for the run to end; the run can be resumed."
