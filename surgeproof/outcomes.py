"""The outcome of one request. Pure: an enumeration and the precedence of its members.

A reply may show several problems at once, such as an error status whose body was cut off. A record
keeps one outcome: the first of `PRECEDENCE` that applies. docs/metrics.md explains each.
"""

from collections.abc import Collection
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended; `HTTP` is stored with its status, as `error:http_429`."""

    OK = "ok"
    NOT_SENT = "not_sent"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    STOPPED = "stopped"
    CONNECT = "error:connect"
    CLIENT_RESOURCE = "error:client_resource"
    TIMEOUT = "error:timeout"
    HTTP = "error:http"
    CONTENT_TYPE = "error:content_type"
    ENCODING = "error:encoding"
    SERVER_EVENT = "error:server_event"
    ABORTED = "error:aborted"
    RESET = "error:reset"
    DISCONNECT = "error:disconnect"
    MALFORMED = "error:malformed"
    TRUNCATED = "error:truncated"
    EMPTY = "error:empty"


NOT_JUDGED = (Outcome.NOT_SENT, Outcome.CANCELLED, Outcome.SKIPPED, Outcome.STOPPED)
"""Requests that say nothing of the server: never sent, cancelled with the run, skipped as an earlier step of their task
failed, or stopped by their user as planned."""
PRECEDENCE = (
    Outcome.NOT_SENT,
    Outcome.SKIPPED,
    Outcome.CONNECT,
    Outcome.CLIENT_RESOURCE,
    Outcome.TIMEOUT,
    Outcome.HTTP,
    Outcome.CONTENT_TYPE,
    Outcome.ENCODING,
    Outcome.SERVER_EVENT,
    Outcome.ABORTED,
    Outcome.STOPPED,
    Outcome.CANCELLED,
    Outcome.RESET,
    Outcome.DISCONNECT,
    Outcome.MALFORMED,
    Outcome.TRUNCATED,
    Outcome.EMPTY,
)
"""Precedence of problems: the first one that applies is the outcome."""


def first_of(problems: Collection[Outcome]) -> Outcome:
    """The outcome of a reply with these problems; OK without any."""
    return next((outcome for outcome in PRECEDENCE if outcome in problems), Outcome.OK)


def http_error(status: int) -> str:
    """The stored outcome of a reply with an error status."""
    return f"{Outcome.HTTP}_{status}"
