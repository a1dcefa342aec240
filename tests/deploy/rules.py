"""Keeps the PrometheusRule made from config/prometheus/alerts.yaml: python -m tests.deploy.rules [--check]"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "config" / "prometheus" / "alerts.yaml"
RULES = ROOT / "deploy" / "components" / "metrics" / "rules.yaml"
_HEADING = "# Made from config/prometheus/alerts.yaml by `make format`.\n"


def prometheus_rule() -> str:
    """The operator's resource with the rules of the file that Prometheus itself can load."""
    made = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "sidecar"},
        "spec": yaml.safe_load(ALERTS.read_text()),
    }
    return _HEADING + yaml.safe_dump(made, sort_keys=False, width=110)


def main() -> int:
    """Write it, or with --check say whether it has to be."""
    old, new = RULES.read_text(), prometheus_rule()
    if "--check" not in sys.argv:
        RULES.write_text(new)
        return 0
    if new != old:
        print("deploy/components/metrics/rules.yaml is old; run `make format`", file=sys.stderr)
    return int(new != old)


if __name__ == "__main__":
    sys.exit(main())
