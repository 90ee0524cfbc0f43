"""`tracker replay`: a dry run over history, which shows which promise would have been right. It needs no tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracker.cli.declarations import command, ending_at, new_commands
from tracker.cli.options import needs
from tracker.cli.output import Form, print_json, print_line, print_table

commands = new_commands()


@command(commands, "replay", "tracker replay orders.parquet --time ts --arrived arrived_at --scope shop --window 1h")
def replay(
    form: Form,
    history: Annotated[
        Path, typer.Argument(metavar="HISTORY", help="a Parquet or CSV file, a folder of them, or a table of Delta")
    ],
    time: Annotated[str, typer.Option(metavar="COLUMN", help="the column with the times of rows, which windows cut")],
    arrived: Annotated[str, typer.Option(metavar="COLUMN", help="the column with the time at which each row came")],
    scope: Annotated[str, typer.Option(metavar="COLUMN", help="the column with the tenant, if there are several")] = "",
    window: Annotated[str, typer.Option(metavar="LENGTH", help="the length of windows: 30s, 5min, 1h, 1d")] = "1h",
    slide: Annotated[
        str, typer.Option(metavar="LENGTH", help="let windows overlap: one begins so much later than the one before")
    ] = "",
    promise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROMISE",
            help="try this one: watermark=5min (Spark's own), frontier=5min, per-scope=5min, wait=1h (by the clock on "
            "the wall after a window's end), least=99.9% (the delay under which so many windows were right at first), "
            "measured=99.9%/1d (learnt as it runs, a day at most), counts; may be repeated. Without: several of each",
        ),
    ] = None,
    trigger: Annotated[str, typer.Option(metavar="LENGTH", help="how often the query reads what has arrived")] = "1min",
    wrong: Annotated[str, typer.Option(metavar="SHARE", help="the share of windows that may be wrong: 0.1%")] = "0%",
    ahead: Annotated[
        str,
        typer.Option(
            metavar="LENGTH",
            help="how far beyond the clock a row's time may be to move a frontier; none: as far as it is, for "
            "times that lie ahead",
        ),
    ] = "5min",
    epoch: Annotated[
        str, typer.Option(metavar="UNIT", help="take whole numbers for times: s, ms, us or ns since 1970")
    ] = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write a page, which needs no network, to this file")
    ] = None,
) -> int:
    """Show which promise would have been right for a history, and how soon windows would have been released.

    Rows are read once in each trigger, as Spark would have done. A window is wrong if it was released without all of
    its rows. No tracker runs. `--output wide` also has a line for each scope.
    """
    from tracker.replay.history import ReplayError
    from tracker.replay.report import TITLES, Options, Replay

    with needs("replay", "replay"):
        from tracker.replay.reading import EPOCHS, Names, read

    with ending_at(OSError, wrong=(ReplayError,)):
        if epoch not in ("", *EPOCHS):
            raise ReplayError(f"--epoch {epoch}: whole numbers count {', '.join(EPOCHS)}")
        options = Options(window, slide, promise or (), trigger, wrong, ahead)
        result = Replay.of(read(history, Names(time, arrived, scope, epoch)), options)
        if html is not None:
            result.save(html)
    if form is Form.JSON:
        print_json(result.document(), indent=2)
        return 0
    print_table(TITLES, result.lines(by_scope=form is Form.WIDE))
    print_line()
    for line in [*result.verdict.splitlines(), "", *result.remarks]:
        print_line(line)
    return 0
