"""How a command ends: what a script can tell apart by the exit code alone."""

from enum import IntEnum


class Code(IntEnum):
    """0 and 3 say how a run stands; 4 says that two sessions differ, as `diff` does; the others are errors."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNFINISHED = 3
    DIFFERENT = 4
    NOT_FOUND = 5
    REFUSED = 6
    TRY_AGAIN = 7
    NOT_PERMITTED = 8


MEANING: dict[Code, str] = {
    Code.OK: "done; a run: finished; a comparison: no difference",
    Code.FAILED: "the service or the agent's provider failed",
    Code.USAGE: "the command or the request is not right",
    Code.UNFINISHED: "the run is not finished: it waits for an approval, or goes on without you",
    Code.DIFFERENT: "the two sessions differ",
    Code.NOT_FOUND: "there is no such session, step, approval or stack",
    Code.REFUSED: "not now: it waits for an approval, is taken, or was decided otherwise",
    Code.TRY_AGAIN: "the same command may succeed later: busy, throttled or out of reach",
    Code.NOT_PERMITTED: "no credentials, or they do not allow it",
}


def code_of(status: int, *, retryable: bool | None) -> Code:
    """The exit code of an error. `retryable` is what the API says about it, None where it does not."""
    if retryable:
        return Code.TRY_AGAIN
    match status:
        case 400 | 413 | 415:
            return Code.USAGE
        case 401 | 403:
            return Code.NOT_PERMITTED
        case 404:
            return Code.NOT_FOUND
        case 409 | 410 | 422:
            return Code.REFUSED
        case 429 | 502 | 503 | 504 if retryable is None:
            return Code.TRY_AGAIN
        case _:
            return Code.FAILED
