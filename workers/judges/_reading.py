"""Reading what a judge replied."""

from __future__ import annotations

import json
from typing import Any

from assay.statuses import Status
from workers.backends import Answer
from workers.judges._base import Verdict

__all__ = ["json_object", "no_verdict", "one_line"]

LONGEST_REASON = 400


def no_verdict(reply: Answer, *, may_be_cut: bool = False) -> Verdict | None:
    """Why a reply holds no verdict at all, or None where it may hold one."""
    if reply.finish_reason == "content_filter":
        return Verdict(Status.REFUSED, reason="refused by the judge endpoint's content filter")
    if reply.finish_reason == "length" and not may_be_cut:
        return Verdict(Status.TRUNCATED, reason="the judge's reply was cut off at max_tokens")
    if not reply.text.strip():
        return Verdict(Status.EMPTY, reason="the judge's reply is empty")
    return None


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object in a reply, whatever stands around it; the last, where there are several."""
    decoder, found, at = json.JSONDecoder(), None, text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found = value
        at = text.find("{", end)
    return found


def one_line(text: object) -> str:
    """A reason as one line of bearable length."""
    return " ".join(str(text).split())[:LONGEST_REASON]
