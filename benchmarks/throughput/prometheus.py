"""What is read out of Prometheus texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels, value."""


def samples(text: str) -> list[Sample]:
    """All samples of a Prometheus text, label values with a bracket or a quote in them left out."""
    return [
        (sample["name"], dict(_LABEL.findall(sample["labels"] or "")), float(sample["value"]))
        for sample in _SAMPLE.finditer(text)
    ]


def by_label(text: str, name: str, label: str) -> dict[str, float]:
    """Label value → the sum of the samples of that name."""
    sums: dict[str, float] = {}
    for sample_name, labels, value in samples(text):
        if sample_name == name and label in labels:
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
    return sums


def means_ms(text: str, histogram: str, label: str) -> dict[str, float]:
    """Label value → mean of a histogram in seconds, in ms."""
    sums, counts = by_label(text, f"{histogram}_sum", label), by_label(text, f"{histogram}_count", label)
    return {value: 1e3 * sums.get(value, 0.0) / count for value, count in counts.items() if count}


def writes(text: str) -> dict[str, float]:
    """ "verb resource/subresource" → requests that the API server has answered, for all that writes."""
    counts: dict[str, float] = {}
    for name, labels, value in samples(text):
        if name == "apiserver_request_total" and labels.get("verb") in {"POST", "PUT", "PATCH"}:
            resource = "/".join(filter(None, (labels.get("resource"), labels.get("subresource"))))
            key = f"{labels['verb']} {resource} {labels.get('code', '')}"
            counts[key] = counts.get(key, 0.0) + value
    return counts
