"""Signed messages: sent by a process that has the token, once, a moment ago.

    signed = magic (4 bytes) sender (16) number (uint64) time (float64, s) mac (32) message, little-endian

The mac is an HMAC-SHA256 over all but the magic. A message is taken once for each sender and receiver, within five
minutes of its time. Nothing is encrypted.
"""

import hashlib
import hmac
import os
import struct
import time
from collections.abc import Callable

_MAGIC = b"SPm1"
_HEAD = struct.Struct("<16sQd")
_MAC_BYTES = 32
_MAX_AGE_S = 300.0
_WINDOW = 1024


class RejectedMessageError(Exception):
    """A message of somebody who has not the token, or a replay."""


class MessageSigner:
    """Signs the messages of this process and verifies those of others.

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

    def sign(self, message: bytes) -> bytes:
        """The message with its signature."""
        self._number += 1
        head = _HEAD.pack(self._sender, self._number, self._now_s())
        return _MAGIC + head + self._mac(head, message) + message

    def verify(self, signed: bytes) -> bytes:
        """The message without its signature.

        Raises:
            RejectedMessageError: it must not be trusted.
        """
        start = len(_MAGIC) + _HEAD.size
        head, mac, message = (
            signed[len(_MAGIC) : start],
            signed[start : start + _MAC_BYTES],
            signed[start + _MAC_BYTES :],
        )
        if not signed.startswith(_MAGIC) or len(mac) < _MAC_BYTES:
            raise RejectedMessageError("it is not signed")
        if not hmac.compare_digest(mac, self._mac(head, message)):
            raise RejectedMessageError("its sender has another token")
        sender, number, at_s = _HEAD.unpack(head)
        if abs(self._now_s() - at_s) > _MAX_AGE_S:
            raise RejectedMessageError("it is older than five minutes, or the clocks of the hosts differ by as much")
        taken = self._taken.setdefault(sender, set())
        newest = max(taken, default=0)
        if sender == self._sender or number in taken or number <= newest - _WINDOW:
            raise RejectedMessageError("it is a replay")
        taken.add(number)
        if len(taken) > 2 * _WINDOW:
            # Greenlets may send their messages in another order than they signed them, but not by so many.
            taken.intersection_update(range(max(taken) - _WINDOW, max(taken) + 1))
        return message

    def _become_sender(self) -> None:
        self._sender = os.urandom(16)
        self._number = 0

    def _mac(self, head: bytes, message: bytes) -> bytes:
        return hmac.digest(self._key, head + message, "sha256")
