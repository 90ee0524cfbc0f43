"""Declarations of commands: the options that several of them share, and the layout of their help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, TypeVar

import typer
import typer.core
import typer.main

Function = TypeVar("Function", bound=Callable[..., Any])
#: Error that Typer raises if a command line is wrong; it exports only this class's most common subclass.
CommandLineError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
#: The context's object if a command line is only to be checked: then no command runs.
CHECK_ONLY: Final = object()
#: Remarks that Typer adds and nobody needs: arguments are required, and a number of seconds is not negative.
_OBVIOUS: Final = re.compile(r"; x>=0(?![.\d])|  \[x>=0\]|  \[required\]")
#: Of each type, the function whose parameters are the options that make a value of it.
_SHARED: dict[Any, Callable[..., Any]] = {}


class WrongUsageError(Exception):
    """A command line in which each option is right, and which is wrong as a whole; the message names the remedy."""


class CommandFailedError(Exception):
    """A command that could not do its work.

    Args:
        message: the reason of the failure, for people.
        details: lines that belong below the message.
    """

    def __init__(self, message: str, details: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.details = details


@contextmanager
def ending_at(*failures: type[Exception], wrong: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """End the command when the body raises something: as failed, or as wrong usage."""
    try:
        yield
    except failures as failed:
        raise CommandFailedError(str(failed)) from failed
    except wrong as error:
        raise WrongUsageError(str(error)) from error


def shared(kind: type) -> Callable[[Function], Function]:
    """Make a function's parameters options of every command that has a parameter of a type.

    Args:
        kind: the type of the value that the function returns. Its first parameter must be the context.
    """

    def declare(function: Function) -> Function:
        _SHARED[kind] = function
        return function

    return declare


def command(commands: typer.Typer, name: str, example: str = "") -> Callable[[Function], Function]:
    """Declare a function as a command: its parameters are arguments and options, its docstring is the help.

    A parameter of a type that was given to `shared` stands for all options of that type.

    Args:
        example: a command line that is shown below the help.

    Example::

        @command(commands, "delete-job")
        def delete_job(at: Connection, form: Form, job: Job) -> int:
            \"""Delete a job with all its events.\"""
    """

    def declare(function: Function) -> Function:
        epilog = f"example: {example}" if example else None
        commands.command(name, cls=Command, epilog=epilog)(with_shared_options(function))
        return function

    return declare


def with_shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as Typer needs it: each parameter of a shared type replaced by the options of that type."""
    own = inspect.signature(function, eval_str=True).parameters
    makers = {each.name: _SHARED[each.annotation] for each in own.values() if each.annotation in _SHARED}
    options = {name: _options(maker) for name, maker in makers.items()}
    wants_context = next((each.name for each in own.values() if each.annotation is typer.Context), None)

    @wraps(function)
    def run(context: typer.Context, **values: Any) -> Any:
        made = {
            name: makers[name](context, **{option: values.pop(option) for option in options[name]}) for name in makers
        }
        if context.obj is CHECK_ONLY:
            return 0
        own_context = {wants_context: context} if wants_context else {}
        return function(**own_context, **made, **values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    kept = [each.replace(kind=keyword) for each in own.values() if each.name not in (*makers, wants_context)]
    added = [each for group in options.values() for each in group.values()]
    parameters = [context, *kept, *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _options(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    _, *options = inspect.signature(maker, eval_str=True).parameters.values()
    return {each.name: each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options}


def given(context: typer.Context, name: str, value: Any) -> Any:
    """Return the value of a shared option: given after the command, before it, in the environment, or the default.

    Args:
        value: the value that Typer has found for the command itself.
    """
    root = context.find_root()
    if not is_given(context, name) and is_given(root, name):
        return root.params[name]
    return value


def is_given(context: Any, name: str) -> bool:
    """Tell whether an option stands in this part of the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def is_set(context: Any, name: str) -> bool:
    """Tell whether an option has a value of the user's: after the command, before it, or in the environment."""
    sources = [context.get_parameter_source(name), context.find_root().get_parameter_source(name)]
    return any(source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT") for source in sources)


def new_commands() -> typer.Typer:
    """Return an empty collection of commands, which a module fills."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


class _Help:
    """The layout of help: options under the heading that they name, examples as they are written."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the line that shows how the command is written."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument" and not each.hidden]  # type: ignore[attr-defined]
        return ["[OPTIONS]", *(each.metavar if each.required else f"[{each.metavar}]" for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                names, text = record
                heading = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append((names, _OBVIOUS.sub("", text)))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that shows the help."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.help = "show this help"
        return option

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Typer's signature
        """Write the examples, line by line."""
        epilog: str | None = self.epilog  # type: ignore[attr-defined]
        if epilog:
            formatter.write_paragraph()
            formatter.write(f"{inspect.cleandoc(epilog)}\n")


class Command(_Help, typer.core.TyperCommand):
    """A command."""


class Group(_Help, typer.core.TyperGroup):
    """A word with commands below it."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the line that shows how the command is written."""
        return [*super().collect_usage_pieces(ctx), "COMMAND …"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, and then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


def describe(wrong: Exception) -> str:
    """Return what is wrong with a command line, and where its help is.

    Args:
        wrong: of the command line, as Typer raises it.
    """
    message = str(wrong.format_message())  # type: ignore[attr-defined]
    context = getattr(wrong, "ctx", None)
    return f"{message.rstrip('.')}; see `{context.command_path} --help`" if context else message
