"""The form of an expression: the same at each start, and another one when the expression computes something else.

Relies on the JSON of an analyzed expression (``TreeNode.toJSON``): the class of each node in the order of a walk, its
number of children and its parameters; on ``sql`` for people; and on ``PythonUDF.func().command()``, which is the
function as cloudpickle has it. What differs between two starts is left out, numbers of attributes and of variables
among it, and settings of the session. Fails closed: an expression that Spark does not show has its text as its form.
One that gives another value each time has none. Since Spark 4.0.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, Final, TypedDict

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame

from spark_client.spark_internals.plans import each_of

#: Parameters of nodes that are numbered anew at each start, or follow from the session's settings or a column's type.
_PASSING: Final = frozenset(
    (
        *("exprId", "resultId", "qualifier", "metadata", "nonInheritableMetadataKeys", "origin", "randomSeed"),
        *("nullable", "containsNull", "valueContainsNull", "timeZoneId", "zoneId", "evalMode", "evalContext"),
        *("failOnError", "ansiEnabled", "nullOnOverflow", "nullOnFailure", "legacySizeOfNull", "hidden"),
        *("value", "func", "replacement", "parameters"),
    )
)
#: How a variable or a function looks in a column's text, with a number or an address that is another one each time.
_NUMBERED: Final = re.compile(r"_\d+\)? ->|columnnodeexpression\(")
_PYTHON: Final = ("PythonUDF", "PythonUDAF")


class Form(TypedDict):
    """An expression, for a note that a later start compares.

    Attributes:
        text: in SQL, for people, and for a start with another version.
        form: a digest of all that determines values.
        by: the versions of Spark and Python that have shown the form.
    """

    text: str
    form: str
    by: str


def expression_form(df: DataFrame, value: Column | str) -> Form | None:
    """Return the form of an expression over some rows; None: it gives another value each time it is computed.

    Args:
        df: the rows.
        value: the expression.

    >>> expression_form(rows, F.lower("kind").alias("kind"))["text"]                               # doctest: +SKIP
    'lower(kind)'
    """
    try:
        expression = df.select(value)._jdf.queryExecution().analyzed().expressions().head()
        while expression.nodeName() == "Alias":
            expression = expression.children().head()
        if not expression.deterministic():
            return None
        text, nodes = str(expression.sql()), json.loads(expression.toJSON())
        codes = _codes(expression) if any(node["class"].endswith(_PYTHON) for node in nodes) else iter(())
    except (AttributeError, Py4JError, ValueError):  # it is no public interface of Spark
        return Form(text=str(value), form=str(value), by="")
    shown = json.dumps(_shown(nodes, codes), sort_keys=True)
    versions = f"Spark {pyspark.__version__}, Python {sys.version_info[0]}.{sys.version_info[1]}"
    return Form(text=text, form=hashlib.sha256(shown.encode()).hexdigest()[:16], by=versions)


def stable_text(df: DataFrame, value: Column) -> str | None:
    """Return what a checkpoint calls an expression whose text differs at each start; None: the text does not.

    Args:
        df: the rows that it is over.
        value: the expression.
    """
    if not _NUMBERED.search(str(value)):
        return None
    form = expression_form(df, value)
    return None if form is None else f"{form['text']} of the form {form['form']}"


def _shown(nodes: list[dict[str, Any]], codes: Iterator[str]) -> list[Any]:
    """Return what of an expression's nodes determines values: variables by their order, functions by their code."""
    variables: dict[int, int] = {}
    shown = []
    for node in nodes:
        its = {key: _without(each) for key, each in node.items() if key not in _PASSING}
        kind = its["class"].rpartition(".")[2]
        if kind == "NamedLambdaVariable":
            its["name"] = variables.setdefault(node["exprId"]["id"], len(variables))
        elif kind == "Literal":
            its["value"] = node["value"]
        elif kind in _PYTHON:
            its["code"] = next(codes, "")
        shown.append(its)
    return shown


def _without(value: Any) -> Any:
    """Return a parameter without what nothing is computed by, such as the nullability of a type's parts."""
    if isinstance(value, list):
        return [_without(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _without(each) for key, each in value.items() if key not in _PASSING}
    return value


def _codes(expression: Any) -> Iterator[str]:
    """Yield a digest of the code of each Python function in an expression, in the order of a walk."""
    if str(expression.getClass().getSimpleName()) in _PYTHON:
        yield _code_in(str(expression.func().command().mkString(" ")))
    for child in each_of(expression.children()):
        yield from _codes(child)


@functools.lru_cache(maxsize=256)
def _code_in(command: str) -> str:
    pickled = bytes(int(number) & 0xFF for number in command.split())
    try:
        loaded = CloudPickleSerializer().loads(pickled)  # type: ignore[no-untyped-call]
    except Exception:  # it needs what is not here; its name is all that is known of it
        return ""
    function = loaded[0] if isinstance(loaded, tuple) else loaded
    return hashlib.sha256(repr(_known_by(function)).encode()).hexdigest()[:16]


def _known_by(value: Any, depth: int = 5) -> Any:
    """Return what a function computes by: its code and constants, and what it has closed over. No line numbers."""
    if isinstance(value, CodeType):
        constants = tuple(_known_by(each, depth) for each in value.co_consts)
        return (value.co_code, value.co_names, value.co_varnames, constants)
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_known_by(each, depth) for each in value)
    if isinstance(value, dict):
        return sorted((repr(key), repr(_known_by(each, depth))) for key, each in value.items())
    function = inspect.unwrap(value) if callable(value) else value
    code = getattr(function, "__code__", None)
    if code is None or depth == 0:
        return f"{type(value).__module__}.{type(value).__qualname__}"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    used = {name: function.__globals__.get(name) for name in code.co_names if name in function.__globals__}
    return tuple(
        _known_by(each, depth - 1) for each in (code, function.__defaults__, function.__kwdefaults__, cells, used)
    )
