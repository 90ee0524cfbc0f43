"""The experiment's results as pictures: PNG files, for `docs/design/papers.md`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from experiments import published
from experiments.cells import Cell, Protocol, Result
from experiments.dataflow import HOP_NS, Shape

matplotlib.use("agg")

_COLOURS = {
    Protocol.PUNCTUATIONS: "#8c6bb1",
    Protocol.GATHERED: "#bcbddc",
    Protocol.ACTION: "#9ecae1",
    Protocol.STEP: "#3182bd",
    Protocol.NODE: "#fd8d3c",
    Protocol.BATCH: "#31a354",
    Protocol.IN_STEP: "#a1d99b",
}
_PANELS = (("vertices", "size"), ("machines", "machines"), ("elements a substream", "per_substream"))
_WIDTH = 0.12


def messages(cells: Sequence[Cell], path: Path) -> None:
    """Draw the messages by graph, machines and elements a substream, beside the published figures.

    Args:
        cells: all configurations that were measured.
        path: of the picture.
    """
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, (label, varied) in zip(panels, _PANELS, strict=True):
        _bars(panel, _series(cells, varied), varied, lambda result: result.total)
        for place, cell in enumerate(_series(cells, varied)):
            known = published.figures(cell.shape)
            if known is not None:
                beside = {
                    Protocol.PUNCTUATIONS: known.punctuations,
                    Protocol.STEP: known.agent,
                    Protocol.NODE: known.node,
                    Protocol.BATCH: known.node / 10,
                }
                for protocol, number in beside.items():
                    at = place + _offset(protocol)
                    style = "dotted" if protocol is Protocol.BATCH else "solid"
                    panel.hlines(number, at - _WIDTH / 2, at + _WIDTH / 2, "black", linestyles=style, linewidth=2)
        panel.set_xlabel(label)
        panel.set_yscale("log")
    panels[0].set_ylim(bottom=1_000)  # for all panels, after the bars: from then on the limits stay
    figure.suptitle("Messages sent for tracking, by vertices, machines and elements a substream", fontsize=11)
    panels[0].set_ylabel("number of messages, with notices")
    panels[0].hlines([], 0, 0, "black", linewidth=2, label="published")
    panels[0].hlines([], 0, 0, "black", linestyles="dotted", linewidth=2, label="a tenth of published node aggregation")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    figure.savefig(path, dpi=110)


def delays(cells: Sequence[Cell], path: Path) -> None:
    """Draw the mean delays by graph, machines and elements a substream.

    Args:
        cells: all configurations that were measured.
        path: of the picture.
    """
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, (label, varied) in zip(panels, _PANELS, strict=True):
        _bars(panel, _series(cells, varied), varied, lambda result: result.delay.mean)
        panel.set_xlabel(label)
        panel.set_yscale("log")
    panels[0].set_ylim(bottom=1)
    figure.suptitle("Mean delay until the end of a substream is known", fontsize=11)
    panels[0].set_ylabel(f"delay, hops of {HOP_NS / 1e6:g} ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8)
    figure.savefig(path, dpi=110)


def intervals(results: Sequence[Result], node: float, path: Path) -> None:
    """Draw what a longer reporting interval saves in messages, and costs in delay.

    Args:
        results: one for each interval.
        node: the number of messages that the papers report for node aggregation.
        path: of the picture.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    delays = [result.delay.mean * HOP_NS / 1e6 for result in results]
    axes.plot(delays, [result.total for result in results], "o-", color=_COLOURS[Protocol.BATCH])
    for result, delay in zip(results, delays, strict=True):
        axes.annotate(
            f"{result.interval_ms:,.0f} ms", (delay, result.total), (5, 5), textcoords="offset points", fontsize=8
        )
    axes.axhline(node, color="black", label="published, node aggregation")
    axes.axhline(node / 10, color="black", linestyle="dotted", label="a tenth of that")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("mean delay until every machine knows of an end, ms")
    axes.set_ylabel("number of messages, with notices")
    axes.margins(x=0.15, y=0.1)  # room for the labels within the frame
    axes.set_title("Messages and delay, by the interval at which a node reports", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _series(cells: Sequence[Cell], varied: str) -> list[Cell]:
    """Return the cells that differ from the papers' standard in one setting, in its order."""
    standard = {"size": Shape().size, "machines": Shape().machines, "per_substream": Shape().per_substream}
    del standard[varied]
    chosen = [cell for cell in cells if all(getattr(cell.shape, what) == is_ for what, is_ in standard.items())]
    return sorted(chosen, key=lambda cell: int(getattr(cell.shape, varied)))


def _offset(protocol: Protocol) -> float:
    return (list(_COLOURS).index(protocol) - (len(_COLOURS) - 1) / 2) * _WIDTH


def _bars(axes: Axes, cells: Sequence[Cell], varied: str, figure: Callable[[Result], float]) -> None:
    for protocol, colour in _COLOURS.items():
        places, heights = [], []
        for place, cell in enumerate(cells):
            result = cell.of(protocol)
            if result is not None:
                places.append(place + _offset(protocol))
                heights.append(figure(result))
        axes.bar(places, heights, _WIDTH, color=colour, label=protocol)
    axes.set_xticks(range(len(cells)), [str(getattr(cell.shape, varied)) for cell in cells])
