"""Properties of Delta tables: what is complete of a table, where those see it who open the table."""

from __future__ import annotations

from .webhooks import DeliveryError


def set_property(table: str, name: str, value: str) -> None:
    """Set a property of a Delta table, as one commit to its log; none if it has that value already.

    Args:
        table: an absolute path, or an address such as ``s3://bucket/table``.
        name: the property's.
        value: its value.

    Raises:
        DeliveryError: there is no such table, or it cannot be written.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError as missing:
        raise DeliveryError(f"a rule with delta needs {missing.name}: pip install 'deltalake>=1,<2'") from missing
    try:
        opened = DeltaTable(table)
        if opened.metadata().configuration.get(name) != value:
            # Who commits in between makes this fail, and it is tried again: a property never replaces data.
            opened.alter.set_table_properties({name: value}, raise_if_not_exists=False)
    except (DeltaError, OSError, ValueError) as error:
        raise DeliveryError(f"{table}: {name} cannot be set: {str(error).partition(chr(10))[0]}") from error
