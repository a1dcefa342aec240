"""Lets the queue readers of vLLM's executors rest, in every engine that has this folder in `PYTHONPATH`.

Rule: runs inside engines, before anything else of theirs. vLLM 0.32's readers yield without end for 1 s after
each message (distributed/device_communicators/shm_broadcast.py), and NIXL's workers are all bound to the
highest core (kv_connector/v1/nixl/base_worker.py): where that core is also the other engine's, a yielding
worker was seen to keep a reading one from running for a minute.
"""

import os
import time

READER_REST_S = 0.0005
"""A rest frees the core."""


def _rest() -> None:
    time.sleep(READER_REST_S)


os.sched_yield = _rest
