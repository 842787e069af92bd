"""An API key that expires: made by a command, again where the endpoint refuses it, and before its known end.

The command's output is the key and nothing else. Under Locust, which replaces `subprocess`, waiting for it does not
keep the load from its sockets. Neither command nor key is ever stored or shown.
"""

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable

import gevent
from msgspec import structs

from surgeproof.credentials import Secrets, authorization, check_headers, expires_at_s
from surgeproof.errors import ConfigError, SurgeproofError

_TIMEOUT_S = 30.0
_MIN_PAUSE_S = 5.0
"""Between two runs of the command for refused keys: an endpoint may refuse every key, at every request."""
_MARGIN_S = 60.0
_MARGIN_SHARE = 0.2
"""A key is renewed a minute before its end, a short one when a fifth of its time is left."""
_RETRY_S = 5.0

logger = logging.getLogger(__name__)


def with_key(secrets: Secrets) -> Secrets:
    """The secrets with a key of their command, where they have one and hold no key yet.

    Raises:
        ConfigError: the command gives none.
    """
    if secrets.api_key_command is None or authorization(secrets.headers):
        return secrets
    key = key_of_command(secrets.api_key_command)
    return structs.replace(secrets, headers=secrets.headers | {"Authorization": f"Bearer {key}"})


def key_of_command(command: str) -> str:
    """Run the command by the shell and return the key that it prints.

    Raises:
        ConfigError: it fails, takes over 30 s, or prints nothing, several lines, or what no header can hold.
    """
    # The command may hold a secret itself: no message repeats it, and of what it printed only its own error.
    child = subprocess.Popen(  # noqa: S602 - what the user gave is a command line of the shell
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--api-key-command: the command took over {_TIMEOUT_S:g} s") from None
    finally:
        # Also what it left running: that would hold its pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode:
        said = err.strip().rpartition("\n")[2][:200]
        raise ConfigError(
            f"--api-key-command: the command ended with exit code {child.returncode}{f': {said}' if said else ''}"
        )
    lines = out.split()
    if len(lines) != 1:
        raise ConfigError(f"--api-key-command: the command must print the key and nothing else, not {len(lines)} words")
    check_headers({"Authorization": lines[0]})
    return lines[0]


class ApiKey:
    """The key in use and its renewal.

    Args:
        secrets: with a key and its command.
        on_new: called with the headers that hold a new key, before anything is sent with it.
        now_s: the time of day, s since 1970, against which keys tell their end.
        make: runs the command.
    """

    def __init__(
        self,
        secrets: Secrets,
        on_new: Callable[[Secrets], None],
        now_s: Callable[[], float] = time.time,
        make: Callable[[str], str] = key_of_command,
    ) -> None:
        assert secrets.api_key_command is not None, "only keys of a command can be renewed"
        self._command = secrets.api_key_command
        self._secrets = secrets
        self._on_new, self._now_s, self._make = on_new, now_s, make
        self._waiting: list[Callable[[bool], None]] = []
        self._renewing: gevent.Greenlet | None = None
        self._expiring: gevent.Greenlet | None = None
        self._ran_at_s = -_MIN_PAUSE_S

    @property
    def _key(self) -> str:
        return authorization(self._secrets.headers).removeprefix("Bearer ")

    def start(self) -> None:
        """Renew the key before its end from now on, where it tells one."""
        self._expiring = gevent.spawn(self._renew_before_expiry)

    def close(self) -> None:
        """Renew nothing more."""
        for greenlet in (self._expiring, self._renewing):
            if greenlet is not None:
                greenlet.kill()

    def renew(self, refused: bytes, on_done: Callable[[bool], None]) -> None:
        """Make a new key, unless there is one already; one run of the command serves all who wait for it.

        Args:
            refused: the request that was answered with 401.
            on_done: called in a hub callback with whether there is a key that the request did not hold.
        """
        if self._key.encode("latin-1") not in refused:
            gevent.get_hub().loop.run_callback(on_done, True)  # noqa: FBT003
        elif self._renewing is not None:
            self._waiting.append(on_done)
        elif self._now_s() - self._ran_at_s < _MIN_PAUSE_S:
            gevent.get_hub().loop.run_callback(on_done, False)  # noqa: FBT003
        else:
            self._waiting.append(on_done)
            self._renewing = gevent.spawn(self._run)

    def _run(self) -> bool:
        """One run of the command, and the answers to all who wait for it."""
        renewed = self._take_new()
        self._renewing = None
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            # Each in a callback of its own: an error of one must not keep the others waiting.
            gevent.get_hub().loop.run_callback(on_done, renewed)
        return renewed

    def _take_new(self) -> bool:
        """Run the command; whether it gave another key."""
        try:
            key = self._make(self._command)
        except (SurgeproofError, OSError) as exc:
            logger.error("the API key could not be renewed: %s", exc)  # noqa: TRY400 - its message is enough
            return False
        finally:
            self._ran_at_s = self._now_s()
        if key == self._key:
            return False
        self._secrets = structs.replace(self._secrets, headers=_replaced(self._secrets.headers, f"Bearer {key}"))
        self._on_new(self._secrets)
        return True

    def _renew_before_expiry(self) -> None:
        while (end_s := expires_at_s(self._key)) is not None:
            left_s = end_s - self._now_s()
            if left_s > 0:
                gevent.sleep(max(1.0, left_s - min(_MARGIN_S, _MARGIN_SHARE * left_s)))
            if self._renewing is None:
                self._renewing = gevent.spawn(self._run)
            if not self._renewing.get():
                gevent.sleep(_RETRY_S)


def _replaced(headers: dict[str, str], value: str) -> dict[str, str]:
    return {name: value if name.lower() == "authorization" else text for name, text in headers.items()}
