"""Authenticated messages between a Locust master and its workers.

Locust's channel (ZeroMQ, MessagePack) trusts whoever reaches its port. With a token that all processes of a load share,
every message is sealed (`message_seal`), and others are dropped. Without one the channel is as Locust made it, but for
messages that are none, which must not end the listener.
"""

import logging
import sys
from typing import Any

import zmq
from locust.exception import RPCError, RPCReceiveError, RPCSendError
from locust.rpc import protocol, zmqrpc

from surgeproof.errors import ConfigError
from surgeproof.loadgen.exposure import check_port
from surgeproof.loadgen.message_seal import Seal

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 30


def protect_channel(token: str | None) -> None:
    """From now on this process's Locust seals what it sends and drops what is not sealed; once a process.

    Args:
        token: None for an open channel, of which only malformed messages are dropped.
    """
    _seal_messages(Seal(token) if token else None)
    _outlive_malformed_messages()
    _check_ports(has_token=token is not None)


def _seal_messages(seal: Seal | None) -> None:
    serialize, unserialize = protocol.Message.serialize, protocol.Message.unserialize

    def sealed(self: Any) -> bytes:
        message: bytes = serialize(self)
        return message if seal is None else seal.close(message)

    def opened(cls: Any, data: bytes) -> Any:
        del cls
        try:
            return unserialize(data if seal is None else seal.open(data))
        except Exception as exc:
            raise RPCReceiveError(f"a message was dropped: {exc}") from exc

    protocol.Message.serialize = sealed
    protocol.Message.unserialize = classmethod(opened)


def _outlive_malformed_messages() -> None:
    """What cannot be read is dropped: it must end neither the master's listener nor the worker's."""
    recv, recv_from_client = zmqrpc.BaseSocket.recv, zmqrpc.BaseSocket.recv_from_client

    def of_master(self: Any) -> Any:
        while True:
            try:
                return recv(self)
            except RPCReceiveError as exc:
                logger.warning("%s", exc)

    def of_worker(self: Any) -> Any:
        try:
            return recv_from_client(self)
        except (RPCError, RPCReceiveError, RPCSendError):
            raise
        except Exception as exc:
            raise RPCReceiveError(f"a message was dropped: {exc!r}") from exc

    zmqrpc.BaseSocket.recv, zmqrpc.BaseSocket.recv_from_client = of_master, of_worker


def _check_ports(*, has_token: bool) -> None:
    """Look at an address before a socket is opened on it, and bound what it takes."""

    def checked(create: Any, *, is_master: bool) -> Any:
        def opened_socket(self: Any, host: str, *arguments: Any) -> None:
            try:
                check_port(host, is_master=is_master, has_token=has_token)
            except ConfigError as exc:
                sys.stderr.write(f"Error: {exc}\n")
                sys.exit(exc.exit_code)
            create(self, host, *arguments)
            self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)

        return opened_socket

    zmqrpc.Server.__init__ = checked(zmqrpc.Server.__init__, is_master=True)
    zmqrpc.Client.__init__ = checked(zmqrpc.Client.__init__, is_master=False)
