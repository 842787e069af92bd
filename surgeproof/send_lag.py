"""How late requests left after their planned time, and how much of it was the client's doing. Pure.

The time to open a connection is the network's and the server's, and so is the time for which the
concurrency cap held a request back. What is left is the client's own lag.
"""

import numpy as np
import numpy.typing as npt

from surgeproof.columns import RecordColumns

Floats = npt.NDArray[np.float64]


def own_lag_ms(columns: RecordColumns, cap_wait: Floats) -> Floats:
    """The client's own part of the time from a request's plan to its sending, ms; NaN for requests not sent.

    Args:
        columns: the records.
        cap_wait: of each, as of `cap_wait_ms`.
    """
    lag = columns.between_ms("sent_at_ns", "intended_at_ns")
    connecting = np.nan_to_num(columns.between_ms("connected_at_ns", "connect_at_ns"))
    own: Floats = lag - connecting - cap_wait
    return own


def cap_wait_ms(columns: RecordColumns, cap: int) -> Floats:
    """How long each request was due while its worker had `cap` requests in flight, ms.

    Requests leave in the order in which they are sent, so that the n-th waits for the (n - cap)-th answer.
    """
    waits = np.zeros(len(columns))
    sent, done = columns.has("sent_at_ns"), columns.has("done_at_ns")
    due_ns, sent_ns, done_ns = (columns.integers(name) for name in ("intended_at_ns", "sent_at_ns", "done_at_ns"))
    workers = columns.integers("worker")
    for worker in np.unique(workers[sent]):
        places = np.flatnonzero(sent & (workers == worker))
        places = places[np.argsort(sent_ns[places], kind="stable")][cap:]
        answers = np.sort(done_ns[sent & done & (workers == worker)])[: len(places)]
        places = places[: len(answers)]
        waits[places] = np.maximum(0, np.minimum(answers, sent_ns[places]) - due_ns[places]) / 1e6
    return waits
