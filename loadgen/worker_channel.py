"""Authenticated messages between a Locust master and its workers.

Locust's channel (ZeroMQ, MessagePack) trusts whoever reaches its port. With a token that all processes of a load share,
every message is signed (`message_signing`), and others are dropped. Without one the channel is as Locust made it, but
malformed messages are dropped: they must not end the listener.
"""

import logging
import sys
from typing import Any

import zmq
from locust.exception import RPCError, RPCReceiveError, RPCSendError
from locust.rpc import protocol, zmqrpc

from surgeproof.errors import ConfigError
from surgeproof.loadgen.exposure import check_port
from surgeproof.loadgen.message_signing import MessageSigner

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 30


def protect_channel(token: str | None) -> None:
    """From now on this process's Locust signs what it sends and drops what is not signed; once a process.

    Args:
        token: None for an open channel, of which only malformed messages are dropped.
    """
    _sign_messages(MessageSigner(token) if token else None)
    _drop_malformed_messages()
    _check_ports(has_token=token is not None)


def _sign_messages(signer: MessageSigner | None) -> None:
    serialize, unserialize = protocol.Message.serialize, protocol.Message.unserialize

    def signed(self: Any) -> bytes:
        message: bytes = serialize(self)
        return message if signer is None else signer.sign(message)

    def verified(cls: Any, data: bytes) -> Any:
        del cls
        try:
            return unserialize(data if signer is None else signer.verify(data))
        except Exception as exc:
            raise RPCReceiveError(f"a message was dropped: {exc}") from exc

    protocol.Message.serialize = signed
    protocol.Message.unserialize = classmethod(verified)


def _drop_malformed_messages() -> None:
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
