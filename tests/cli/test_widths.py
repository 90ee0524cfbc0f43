"""Tables and lists of fixed values on terminals of several widths, as they are committed."""

from __future__ import annotations

import pytest

from tests.cli.screens import Terminal
from tests.cli.shell import Shell
from tests.cli.snapshots import compare, masked_times


@pytest.fixture(scope="module")
def shell() -> Shell:
    return Shell("127.0.0.1:1")


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("what", ["jobs", "job", "substreams", "subscriptions", "pairs"])
def test_a_table_fits_the_terminal(shell: Shell, what: str, width: int) -> None:
    with Terminal(shell, what, "table", program="tests.cli.printing", columns=width, lines=120) as terminal:
        assert terminal.finish() == 0
        assert max(map(len, terminal.text.splitlines())) <= width
        compare(f"width-{width}-{what}", masked_times(f"{terminal.text}\n"))


@pytest.mark.parametrize("what", ["jobs", "substreams", "subscriptions"])
def test_a_wide_table_has_all_columns_on_one_line_of_whatever_length(shell: Shell, what: str) -> None:
    with Terminal(shell, what, "wide", program="tests.cli.printing", columns=80, NO_COLOR="1", lines=120) as terminal:
        assert terminal.finish() == 0
        lines = terminal.plain_lines()
        assert max(map(len, lines)) > 80
        compare(f"width-wide-{what}", masked_times("".join(f"{line.rstrip()}\n" for line in lines)))
