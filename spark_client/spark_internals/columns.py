"""Columns as text, as a form that is the same at each start, and as a pickle for another process of the same Spark.

Relies on ``str(column)`` (``pyspark.sql.classic.column``), such as ``Column<'avg(delay)'>``: a form for people, that no
release promises. Fails closed: a text that is not understood counts as unknown, so more columns are read, or an
aggregate is refused. Since Spark 4.0.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, Final, TypedDict

import pyspark
from pyspark.cloudpickle import CloudPickler
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame, SparkSession

from spark_client.errors import UsageError, refused
from spark_client.spark_internals.errors import NOT_SHOWN
from spark_client.spark_internals.plans import each_of

_PLAIN: Final = re.compile(r"(?:Column<')?(\w+)(?:'>)?")
_CALL: Final = re.compile(r"Column<'(\w+)\((.*)\)'>", re.DOTALL)
_STAR: Final = "unresolvedstar()"  #: how Spark Connect writes ``*``


def plain_name(value: Column | str) -> str | None:
    """Return the name of a plain column; None: it is an expression, or has an unusual name.

    >>> plain_name("origin")
    'origin'
    """
    found = _PLAIN.fullmatch(value if isinstance(value, str) else str(value))
    return None if found is None else found[1]


def call_in(value: Column) -> tuple[str, str]:
    """Return the function that a column calls, and the text of its arguments; two empty texts: it is no call of a
    function."""
    found = _CALL.fullmatch(str(value))
    return ("", "") if found is None else (found[1], "*" if found[2] == _STAR else found[2])


# Relies on the JSON of an analyzed expression (``TreeNode.toJSON``): the class of each node in the order of a walk, its
# number of children and its parameters; on ``sql`` for people; and on ``PythonUDF.func().command()``, which is the
# function as cloudpickle has it. Parts that differ between two starts are left out, among them numbers of attributes
# and of variables, and settings of the session. Fails closed: an expression that Spark does not show has its text as
# its form. One that gives another value each time has none. Since Spark 4.0.

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
_NUMBERED: Final = re.compile(
    r"_\d+\)? ->|columnnodeexpression\(" if pyspark.__version__ >= "4" else r"lambdafunction\("
)
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
    except (*NOT_SHOWN, ValueError):
        return Form(text=str(value), form=str(value), by="")
    shown = json.dumps(_shown(nodes, codes), sort_keys=True)
    versions = f"Spark {pyspark.__version__}, Python {sys.version_info[0]}.{sys.version_info[1]}"
    return Form(text=text, form=hashlib.sha256(shown.encode()).hexdigest()[:16], by=versions)


def stable_text(df: DataFrame, value: Column) -> str | None:
    """Return what a checkpoint calls an expression whose text differs at each start; None: the text does not.

    Args:
        df: the rows that it is over.
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


# A `Column` of classic PySpark is a handle to an object of one JVM, which Python cannot pickle. Its node is plain data,
# though, and Java serializes it.
#
# Relies on ``Column._jc.node()`` and the constructor of ``pyspark.sql.classic.column``, on the constructor of the JVM's
# ``org.apache.spark.sql.Column`` from a node, and on ``org.apache.spark.util.Utils`` (``serialize``, ``deserialize``).
# A `DataFrame` of Spark Connect is its plan, which is data, too, in the session that loads it. The parts of a plan have
# numbers of the process, by which ``df["column"]`` finds its rows, so those made after loading are given higher ones.
# Relies on ``DataFrame._plan`` and the constructor of such a DataFrame, and on ``LogicalPlan._nextPlanId``.
# Fails closed: what cannot be carried is refused when it is pickled, and bytes of another version when they are loaded.
# Since Spark 4.0.


def dumps(plan: object) -> bytes:
    """Return a plan as bytes, for a process that runs the same version of Spark.

    Args:
        plan: values, columns, and functions of the user.

    Raises:
        UsageError: it has something of this session or process: a DataFrame of a classic session, a connection, a lock.

    >>> loads(dumps(F.col("a") + 1))                                                       # doctest: +SKIP
    Column<'+(a, 1)'>
    """
    file = io.BytesIO()
    with refused(
        "the plan of a query cannot be carried to another process",
        "Give functions that make what they need when they are called",
        (pickle.PicklingError, TypeError, *NOT_SHOWN, PySparkException),
    ):
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump((_release(), plan))
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return the plan that `dumps` has made bytes of; its columns are of the JVM of the session that is active.

    Args:
        data: trusted bytes: loading them runs code.

    Raises:
        UsageError: they are of another version of Spark, or no session is active.
    """
    if SparkSession.getActiveSession() is None:
        raise UsageError("the columns of a plan are of a Spark session: create it before the plan is loaded")
    version, plan = pickle.loads(data)
    if version != _release():
        raise UsageError(f"the plan was made under Spark {version}, and this is {pyspark.__version__}: declare it here")
    return plan


def _release() -> str:
    """Return the release of Spark without the number of its maintenance: `pyspark-client` lacks some of those."""
    return pyspark.__version__.rpartition(".")[0]


#: The class of a DataFrame, as Java's serialization writes it.
_DATASET: Final = b"org.apache.spark.sql.classic.Dataset"


class _Pickler(CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        handle = getattr(obj, "_jc", None) if isinstance(obj, Column) else None
        if handle is not None:  # else it is a column of Spark Connect, which is plain data
            node = _jvm().org.apache.spark.util.Utils.serialize(handle.node())
            if _DATASET in node:  # of a subquery: Java would carry it, and the other session cannot read it
                raise pickle.PicklingError("a column has a subquery, whose DataFrame is of one session")
            return _column, (node,)
        if isinstance(obj, DataFrame) and (plan := getattr(obj, "_plan", None)) is not None:
            return _rows, (type(obj), plan, type(plan)._nextPlanId)
        if isinstance(obj, DataFrame | SparkSession):
            raise pickle.PicklingError(f"a step or an option has a {type(obj).__name__}, which is of one session")
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _rows(kind: Any, plan: Any, numbers: int) -> Any:
    counting = next(each for each in type(plan).__mro__ if "_nextPlanId" in vars(each))
    counting._nextPlanId = max(counting._nextPlanId, numbers)  # type: ignore[attr-defined]
    return kind(plan, SparkSession.active())


def _column(node: bytes) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn  # `pyspark-client` cannot load it

    jvm = _jvm()
    return ClassicColumn(jvm.org.apache.spark.sql.Column(jvm.org.apache.spark.util.Utils.deserialize(node)))


def _jvm() -> Any:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return spark._jvm
