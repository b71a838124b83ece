"""Ids at the border: session ids in URLs, principals from IAM, callback tokens."""

import base64
import hashlib
import re
import secrets

from durable.errors import ApprovalNotFoundError, InvalidSessionIdError
from durable.records import check_session_id

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_APPROVAL = re.compile(r"apr_[0-9a-f]{32}")
_ASSUMED_ROLE = re.compile(r"arn:(?P<partition>[^:]+):sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/.*")


def path_segment(session_id: str) -> str:
    """The id as it stands in a URL: itself where it is plain, else `~` and the base64url of its UTF-8."""
    if _PLAIN.fullmatch(session_id):
        return session_id
    return "~" + base64.urlsafe_b64encode(session_id.encode()).decode().rstrip("=")


def session_id_of(segment: str) -> str:
    """The session id that a URL segment stands for. Raises `InvalidSessionIdError`."""
    if not segment.startswith("~"):
        if not _PLAIN.fullmatch(segment):
            raise InvalidSessionIdError("stands in the URL as `~` and its base64url unless it is of A-Z a-z 0-9 _ -")
        return check_session_id(segment)
    encoded = segment[1:]
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        return check_session_id(decoded.decode())
    except ValueError:
        raise InvalidSessionIdError("in the URL is not base64url of UTF-8 after the `~`") from None


def approval_id_of(segment: str) -> str:
    """The approval id in a URL. What cannot be one is refused and not repeated: it may be a callback token."""
    if not _APPROVAL.fullmatch(segment):
        raise ApprovalNotFoundError("of this path")
    return segment


def principal(user_arn: str | None) -> str | None:
    """The IAM user or role behind a request, without the session name that its holder may choose freely."""
    if user_arn and (match := _ASSUMED_ROLE.fullmatch(user_arn)):
        return f"arn:{match['partition']}:iam::{match['account']}:role/{match['role']}"
    return user_arn or None


def new_callback_token(approval_id: str) -> str:
    """A token that opens one approval: its id, and 256 random bits."""
    return f"{approval_id}.{secrets.token_urlsafe(32)}"


def approval_of_token(token: str) -> str:
    """The id of the approval that a token claims to open; whether it does is for its hash to say."""
    return token.partition(".")[0]


def token_hash(token: str) -> str:
    """What is stored of a callback token: its SHA-256, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()
