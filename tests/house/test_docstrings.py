"""Prose begins with what acts: a function with a verb in the imperative, a class and a sentence with a noun."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.house.trees import definitions

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["tracker", "spark_client", "examples", "benchmarks", "scripts", "experiments", "integrations", "tests"]
#: First words of a noun or a clause, or of a verb in the third person.
_BANNED = re.compile(
    "The|A|An|One|Two|Each|Every|All|Any|Some|Several|Both|Only|No|Nothing|Nobody|Everything|It|Its|They|There|This|That"
    "|These|Those|As|Of|For|In|On|With|Without|By|At|To|From|Until|After|Before|Once|If|So|Rows|Columns"
    "|SIGKILL|SIGTERM|kill|What|Whether|Who|Whoever|Which|How|Where|Why|Returns|Yields|Makes|Writes|Reads|Removes"
    "|Starts|Stops|Ends|Runs|Waits|Gives|Takes|Puts|Lets|Sends|Adds|Keeps|Opens|Closes|Moves|Holds|Builds|Checks"
    "|Measures|Prints|Tells"
)

#: First words of a class's docstring that are verbs or pronouns.
_OF_A_CLASS = re.compile(
    "What|Whether|Who|Whoever|Which|How|In|Its|It|Returns|Yields|Makes|Writes|Reads|Removes|Starts|Stops|Runs|Gives|Takes"
    "|Puts|Put|Make|Send|Lets|Sends|Adds|Keeps|Opens|Closes|Moves|Holds|Builds|Measures|Prints|Tells|Stands|Draws|Drives"
    "|Carries|Decides|Knows|Looks|Passes|Plays|Watches|Works|Started"
)

#: A function's docstring that begins with what only the class's docstring, or none, has named.
_IT = re.compile(r"\w+ (?:it|them)\b|Return (?:(?:whether|how|what|where|when|why) )?(?:it|they|its|their)\b")

#: A line of an argument or a field in a docstring: its names, and the beginning of what it is.
_ARGUMENT = re.compile(r"    (\*{0,2}\w[\w, *]*): *(.*)")
_FEWEST = 4  #: words with which an argument of the packages is explained

#: The beginning of a sentence with a noun clause, in a docstring or a comment; a question is none.
_CLAUSE = re.compile(
    r'(?m)(?:^\s*(?:#:?|r?""")?\s*(?:[-*]\s+)?|[.:;?!]["\'`)*]*\s+)((?:Wh(?:at|o)(?:ever)?|Whether)\b(?![^.]*\?))'
)


def _find_none(rule: Callable[[Path], Iterable[tuple[int, str]]], folder: str) -> None:
    """Fail with each line that a rule finds in a folder's modules, but for those that are generated."""
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "gen" not in path.parts]
    found = [f"{path.relative_to(ROOT)}:{line}: {words}" for path in paths for line, words in rule(path)]
    assert not found, "\n".join(found)


def beginnings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each function's docstring that begins with no verb.

    A property describes a value, and a test states what holds.
    """
    for each in definitions(path):
        if each.docstring and not (each.is_class or each.is_test or each.is_property):
            word = each.docstring.split()[0].rstrip(",:")
            if _BANNED.fullmatch(word):
                yield each.line, word


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_docstring_begins_with_a_verb(folder: str) -> None:
    _find_none(beginnings, folder)


def verbs(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each class's docstring that begins with a verb or a pronoun."""
    for each in definitions(path):
        if each.docstring and each.is_class:
            word = each.docstring.split()[0].rstrip(",:")
            if _OF_A_CLASS.fullmatch(word):
                yield each.line, word


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_class_begins_with_a_noun(folder: str) -> None:
    _find_none(verbs, folder)


def test_a_noun_clause_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def f():\n    """Whether it works."""\n\n\n@property\ndef g():\n    """Whether it works."""\n')
    assert [*beginnings(module)] == [(1, "Whether")]


def test_a_verb_of_a_class_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('class A:\n    """Reads a file."""\n\n\nclass B:\n    """Reader of a file."""\n')
    assert [*verbs(module)] == [(1, "Reads")]


def clauses(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each sentence that begins with a noun clause."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
                for found in _CLAUSE.finditer(token.string):
                    yield token.start[0] + token.string.count("\n", 0, found.start(1)), found[1]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_sentence_begins_with_a_noun_clause(folder: str) -> None:
    _find_none(clauses, folder)


def test_a_sentence_is_found_in_docstrings_and_comments(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""One. What is\nleft.\n\nArgs:\n    a: Whether.\n"""\n#: Who waits.\nx = "What"  # What now?\n')
    assert [*clauses(module)] == [(1, "What"), (5, "Whether"), (7, "Who")]


def pronouns(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the beginning of each function's docstring whose "it" nobody has named."""
    for each in definitions(path):
        if not (each.is_class or each.is_test) and (found := _IT.match(each.docstring)):
            yield each.line, found[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_docstring_names_what_is_acted_on(folder: str) -> None:
    _find_none(pronouns, folder)


def test_a_pronoun_without_a_noun_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def f():\n    """Stop it."""\n\n\ndef g():\n    """Stop the server, and close it."""\n')
    assert [*pronouns(module)] == [(1, "Stop it")]


def arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the explanations in a docstring's sections of arguments and attributes."""
    for section in re.findall(r"(?m)^(?:Args|Attributes):\n((?:(?: .*)?(?:\n|$))+)", docstring):
        name, words = "", ""
        for line in section.splitlines():
            if found := _ARGUMENT.fullmatch(line):
                if name:
                    yield name, words
                name, words = found[1], found[2]
            else:
                words += " " + line
        yield name, words


def unexplained(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line, the names and the explanation of each argument that has too few words."""
    for each in definitions(path):
        for name, words in arguments(each.docstring):
            if len(words.split()) < _FEWEST:
                yield each.line, f"{name}: {words}"


@pytest.mark.parametrize("folder", FOLDERS[:2])
def test_an_argument_is_explained_or_left_out(folder: str) -> None:
    _find_none(unexplained, folder)


def test_the_words_of_an_argument_are_counted_over_its_lines() -> None:
    text = "Read.\n\nArgs:\n    a, b: two\n        words and two.\n    c: the path.\n\nReturns:\n    d: one."
    assert [(name, len(words.split())) for name, words in arguments(text)] == [("a, b", 4), ("c", 2)]
