"""Waits until the engine of this pod has nothing left to do: its preStop hook, drain.py SECONDS URL...

vLLM cuts what it is answering when it is told to stop. The kubelet tells it after this hook has ended,
and the sidecar, a native sidecar, after the engine. Standard library only: it runs in the engine's image.
"""

import sys
import time
import urllib.request

# Gateways and endpoint pickers go on sending for as long as it takes them to hear that the pod is going.
_NEWS_TRAVELS_S = 5.0
_LOOK_EVERY_S = 1.0
_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def requests(metrics: str) -> float:
    """How many requests the engine runs or has waiting, over all its ranks."""
    lines = (line for line in metrics.splitlines() if line.split("{")[0].split(" ")[0] in _BUSY)
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def at_rest(url: str) -> bool:
    """Whether the engine behind this `/metrics` has nothing to do; one that does not answer has nothing."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return requests(answer.read().decode()) == 0
    except OSError:
        return True


def drain(urls: list[str], limit_s: float, news_travels_s: float = _NEWS_TRAVELS_S) -> bool:
    """Return whether all engines (one per rank) came to rest within `limit_s`."""
    ends_s = time.monotonic() + limit_s
    time.sleep(min(news_travels_s, limit_s))
    while time.monotonic() < ends_s:
        if all(at_rest(url) for url in urls):
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


if __name__ == "__main__":
    drain(sys.argv[2:], float(sys.argv[1]))
