"""The experiment's results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from experiments import published
from experiments.cells import COMPARED, Cell, Protocol, Result
from experiments.dataflow import HOP_NS, Kind, Shape


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def large(number: float) -> str:
    """Return a number to three digits.

    >>> large(12_345_678), large(950)
    ('12.3 M', '950')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def name(shape: Shape) -> list[str]:
    """Return a configuration's first three columns."""
    kind = "RR" if shape.kind is Kind.LINE else "loop"
    return [f"{kind}-{shape.size}", str(shape.machines), str(shape.per_substream)]


def _cell(number: float, beside: float | None = None) -> str:
    return large(number) if beside is None else f"{large(number)} ({large(beside)})"


def against_published(cells: Iterable[Cell]) -> str:
    """Return a table of all messages, with the papers' figures in brackets where there are any."""
    header = ["graph", "machines", "elements a substream", *COMPARED]

    def rows() -> Iterator[list[str]]:
        for cell in cells:
            known = published.figures(cell.shape)
            beside = {
                Protocol.PUNCTUATIONS: known and known.punctuations,
                Protocol.STEP: known and known.agent,
                Protocol.NODE: known and known.node,
            }
            row = name(cell.shape)
            for protocol in COMPARED:
                result = cell.of(protocol)
                row.append("not possible" if result is None else _cell(result.total, beside.get(protocol)))
            yield row

    return table(header, rows())


def in_detail(cell: Cell) -> str:
    """Return one configuration: every protocol's messages, bytes and delay."""
    header = [
        "protocol",
        "messages",
        "within machines",
        "MB",
        "notices to machines",
        "delay, hops: mean",
        "p50",
        "p99",
        "ends checked",
    ]

    def rows() -> Iterator[list[str]]:
        for result in cell.results:
            yield [
                _called(result),
                f"{result.messages:,}",
                f"{result.local_messages:,}",
                f"{result.bytes / 1e6:,.2f}",
                f"{result.total - result.messages:,}",
                f"{result.delay.mean:,.1f}",
                f"{result.delay.p50:,.1f}",
                f"{result.delay.p99:,.1f}",
                f"{result.followed:,} of {cell.shape.substreams:,}",
            ]

    return table(header, rows())


def _called(result: Result) -> str:
    if result.interval_ms is None:
        return result.protocol
    return f"{result.protocol} ({result.interval_ms:,.0f} ms)"


def megabytes(cells: Iterable[Cell]) -> str:
    """Return a table of the bytes of reports and punctuations, in MB."""
    return _grid(cells, lambda result: result.bytes / 1e6)


def delays(cells: Iterable[Cell]) -> str:
    """Tabulate mean delays in hops."""
    return _grid(cells, lambda result: result.delay.mean)


def _grid(cells: Iterable[Cell], figure: Callable[[Result], float]) -> str:
    def rows() -> Iterator[list[str]]:
        for cell in cells:
            results = [cell.of(protocol) for protocol in COMPARED]
            yield [*name(cell.shape), *("not possible" if each is None else f"{figure(each):,.1f}" for each in results)]

    return table(["graph", "machines", "elements a substream", *COMPARED], rows())


def by_interval(results: Iterable[Result], bar: float) -> str:
    """Return a table of what waiting saves."""
    header = [
        "a node reports every",
        "messages",
        "with notices",
        "of the papers' node aggregation",
        "MB",
        "delay, hops",
        "ms",
    ]

    def rows() -> Iterator[list[str]]:
        for result in results:
            assert result.interval_ms is not None
            yield [
                f"{result.interval_ms:,.0f} ms",
                f"{result.messages:,}",
                f"{result.total:,}",
                f"1/{bar / result.total:,.1f}",
                f"{result.bytes / 1e6:,.2f}",
                f"{result.delay.mean:,.0f}",
                f"{result.delay.mean * HOP_NS / 1e6:,.0f}",
            ]

    return table(header, rows())


def linear(cells: Iterable[Cell]) -> str:
    """Return a table of the cost of batching for each machine and interval, and for each machine and substream."""
    header = [
        "graph",
        "machines",
        "elements a substream",
        "messages",
        "for each machine and second",
        "entries",
        "for each machine and substream",
        "bytes an entry",
    ]

    def rows() -> Iterator[list[str]]:
        for cell in cells:
            result = cell.of(Protocol.BATCH)
            if result is None or result.entries is None:
                continue
            shape = cell.shape
            seconds = shape.elements / 100
            yield [
                *name(shape),
                f"{result.messages:,}",
                f"{result.messages / shape.machines / seconds:.3f}",
                f"{result.entries:,}",
                f"{result.entries / shape.machines / shape.substreams:.3f}",
                f"{result.bytes / result.entries:.1f}",
            ]

    return table(header, rows())


def judgement(cells: Iterable[Cell]) -> str:
    """Judge batching against a tenth of the papers' node aggregation, by how machines learn of ends."""
    header = [
        "graph",
        "machines",
        "elements a substream",
        "a tenth of the papers'",
        "reports",
        "and one watcher of every end",
        "and each machine asks once an interval",
        "and a notice to each machine",
        "and a watcher on each machine",
    ]

    def rows() -> Iterator[list[str]]:
        for cell in cells:
            known, result = published.figures(cell.shape), cell.of(Protocol.BATCH)
            if known is None or result is None:
                continue
            bar = known.node / 10
            ends = cell.shape.substreams
            sums = [
                result.messages,
                result.messages + ends,
                3 * result.messages,  # a question and an answer beside each report
                result.total,
                result.messages + ends * cell.shape.machines,
            ]
            yield [*name(cell.shape), large(bar), *(f"{each:,}{'' if each <= bar else ' (more)'}" for each in sums)]

    return table(header, rows())
