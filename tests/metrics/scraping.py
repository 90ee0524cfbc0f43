"""Numbers of a scrape."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.web.fetching import get

Labels = tuple[tuple[str, str], ...]


def scraped(url: str) -> dict[tuple[str, Labels], float]:
    """Return every sample of a scrape, by name and labels."""
    page = get(f"{url}/metrics")
    assert page.status == 200, page.text
    text = page.text.encode("latin1").decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in found]
    assert len(keys) == len(set(keys)), "two samples of one series"
    return dict(zip(keys, (sample.value for sample in found), strict=True))


def value(url: str, name: str, **labels: Any) -> float | None:
    """Return one sample's value; None if there is no such series."""
    return scraped(url).get((name, tuple(sorted(labels.items()))))


def values(url: str, name: str, by: str, **labels: str) -> dict[str, float]:
    """Return the values of a metric by one of its labels; the others as given."""
    found = {}
    for (each, of), number in scraped(url).items():
        rest = dict(of)
        if each == name and (own := rest.pop(by, None)) is not None and rest == labels:
            found[own] = number
    return found
