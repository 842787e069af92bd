"""Seals on messages: who has the token sent them, once, a moment ago.

    sealed = mark (4 bytes) sender (16) number (uint64) time (float64, s) mac (32) message, little-endian

The mac is an HMAC-SHA256 over all but the mark. A message is taken once for each sender and receiver, within five
minutes of its time. Nothing is encrypted.
"""

import hashlib
import hmac
import os
import struct
import time
from collections.abc import Callable

_MARK = b"SPm1"
_HEAD = struct.Struct("<16sQd")
_MAC_BYTES = 32
_MAX_AGE_S = 300.0
_WINDOW = 1024


class ForgedMessageError(Exception):
    """A message of somebody who has not the token, or a copy of an earlier one."""


class Seal:
    """Seals the messages of this process and opens those of others.

    Args:
        token: what all processes share.
        now_s: wall clock.
    """

    def __init__(self, token: str, now_s: Callable[[], float] = time.time) -> None:
        self._key = hashlib.sha256(token.encode()).digest()
        self._now_s = now_s
        self._taken: dict[bytes, set[int]] = {}
        self._become_sender()
        # Locust forks its workers: each is a sender of its own.
        os.register_at_fork(after_in_child=self._become_sender)

    def close(self, message: bytes) -> bytes:
        """The message, sealed."""
        self._number += 1
        head = _HEAD.pack(self._sender, self._number, self._now_s())
        return _MARK + head + self._mac(head, message) + message

    def open(self, sealed: bytes) -> bytes:
        """The message within.

        Raises:
            ForgedMessageError: it must not be believed.
        """
        start = len(_MARK) + _HEAD.size
        head, mac, message = (
            sealed[len(_MARK) : start],
            sealed[start : start + _MAC_BYTES],
            sealed[start + _MAC_BYTES :],
        )
        if not sealed.startswith(_MARK) or len(mac) < _MAC_BYTES:
            raise ForgedMessageError("it is not sealed")
        if not hmac.compare_digest(mac, self._mac(head, message)):
            raise ForgedMessageError("its sender has another token")
        sender, number, at_s = _HEAD.unpack(head)
        if abs(self._now_s() - at_s) > _MAX_AGE_S:
            raise ForgedMessageError("it is older than five minutes, or the clocks of the hosts differ by as much")
        taken = self._taken.setdefault(sender, set())
        newest = max(taken, default=0)
        if sender == self._sender or number in taken or number <= newest - _WINDOW:
            raise ForgedMessageError("it is a copy of an earlier one")
        taken.add(number)
        if len(taken) > 2 * _WINDOW:
            # Greenlets may send their messages in another order than they sealed them, but not by so many.
            taken.intersection_update(range(max(taken) - _WINDOW, max(taken) + 1))
        return message

    def _become_sender(self) -> None:
        self._sender = os.urandom(16)
        self._number = 0

    def _mac(self, head: bytes, message: bytes) -> bytes:
        return hmac.digest(self._key, head + message, "sha256")
