"""The papers' figures, for comparison.

Read off the bars of the figures on service traffic in "Bounding substreams in distributed stream processing"
(Information Systems 117, 2023; the same measurements as in the DEBS paper of 2022): a real engine on virtual machines,
50,000 elements, 100 a second. Where a figure varies one thing, the others are 30 vertices, 15 machines and 10 elements
a substream. Counted there are all messages that tracking sent over the network, notifications included.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.dataflow import Kind, Shape


class Published(NamedTuple):
    punctuations: float
    agent: float  #: centralised, without aggregation
    node: float  #: centralised, nodes aggregate


_FIGURES = {  # (vertices, machines, elements a substream)
    (10, 15, 10): Published(4.32e6, 5.84e5, 2.07e5),
    (30, 15, 10): Published(1.176e7, 1.385e6, 3.66e5),
    (100, 15, 10): Published(3.19e7, 4.19e6, 4.94e5),
    (30, 10, 10): Published(5.02e6, 1.401e6, 2.75e5),
    (30, 20, 10): Published(2.17e7, 1.386e6, 4.19e5),
    (30, 15, 1): Published(5.94e7, 1.406e6, 3.87e5),
    (30, 15, 100): Published(1.179e6, 1.408e6, 3.71e5),
}
CELLS = tuple(_FIGURES)  #: the configurations that were published
ELEMENTS = 50_000


def figures(shape: Shape) -> Published | None:
    """Return the published figures of a configuration; None if there are none."""
    if shape.kind is not Kind.LINE or shape.elements != ELEMENTS or shape.segments_apart:
        return None
    return _FIGURES.get(shape.key)
