"""Reads what PromQL queries of config/ ask for, as far as these use it: metrics, their labels and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFIG = Path(__file__).parent.parent / "config"
ALERTS = CONFIG / "prometheus" / "alerts.yaml"

# Prometheus gives these to what it scrapes.
TARGET_LABELS = frozenset(("job", "instance"))

_SELECTOR = re.compile(r"\b((?:llm_d|moriio)_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|=|!=|!~)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the labels that its legend shows."""

    where: str
    text: str
    legend: str = ""

    def selectors(self) -> Iterator[tuple[str, dict[str, list[str]]]]:
        """Each metric with the values that its matchers name, by label."""
        for name, matchers in _SELECTOR.findall(self.text):
            yield name, {label: values.split("|") for label, _, values in _MATCHER.findall(matchers)}

    def labels(self) -> set[str]:
        """Labels that are grouped by or shown."""
        grouped = [label.strip() for group in _GROUPED.findall(self.text) for label in group.split(",")]
        return {*grouped, *_SHOWN.findall(self.legend)}

    def filled(self) -> str:
        """The query with Grafana's variables in place, for all jobs and instances."""
        text = self.text.replace("$__rate_interval", "1m")
        return text.replace("$job", ".*").replace("$instance", ".*")


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    document: dict[str, Any] = json.loads((CONFIG / "grafana" / "dashboard.json").read_text())
    return document


def panel_queries() -> list[Query]:
    """Every query of the dashboard's panels."""
    return [
        Query(panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def variable_queries() -> list[Query]:
    """What the dashboard's variables are chosen from: `label_values(metric, label)`."""
    variables = dashboard()["templating"]["list"]
    return [Query(one["name"], one["definition"]) for one in variables if one["type"] == "query"]


def alert_rules() -> list[dict[str, Any]]:
    """Every alert rule."""
    document = yaml.safe_load(ALERTS.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def alert_queries() -> list[Query]:
    """The expressions of the alerts."""
    return [Query(rule["alert"], rule["expr"]) for rule in alert_rules()]
