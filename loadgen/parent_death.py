"""Ends this process when its parent dies, so that no load outlives the command that asked for it. Linux only."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, signal_number: int = signal.SIGINT) -> None:
    """Have the kernel send this signal when the parent dies, even by kill -9.

    Args:
        parent: its process id: if it is gone already, the signal is sent at once.
        signal_number: SIGINT ends a load in order, with everything recorded.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal_number)
