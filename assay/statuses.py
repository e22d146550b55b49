"""What can become of a try: the same words in jobs, attempts, commands and the page."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Status"]


class Status(StrEnum):
    """What became of a try. Only `SCORED` has a score; none of the others is ever a wrong answer."""

    SCORED = "scored"
    ANSWERED = "answered"  # the answer is there; a judge's job will score it
    # The endpoint answered (and billed), but the answer says nothing about the method.
    REFUSED = "refused"  # by a content filter
    EMPTY = "empty"
    TRUNCATED = "truncated"  # cut off at max_tokens
    MALFORMED = "malformed"  # a judge's verdict that cannot be read
    UNSCORABLE = "unscorable"  # the scorer cannot judge it: no target, a bug
    # The call brought no answer; trying again may help.
    RATE_LIMITED = "rate-limited"  # 429
    SERVER_ERROR = "server-error"  # 5xx
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # no connection, or it broke
    UNREADABLE = "unreadable"  # the body is not what the protocol says
    # Trying again does not help.
    REJECTED = "rejected"  # any other 4xx: wrong key, unknown model
    FAILED = "failed"  # before or beside the call: no price, no such backend, a bug
    LOST = "lost"  # its worker stopped answering
