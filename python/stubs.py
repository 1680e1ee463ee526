"""Writes package/trainwright/__init__.pyi: the functions out of the commands' options, the answers out of the commands' schemas.

python stubs.py          writes the file
python stubs.py --check  ends with 1 if the file is not what would be written
"""

import json
import keyword
import sys
from pathlib import Path

from trainwright import _native

FILE = Path(__file__).parent / "package" / "trainwright" / "__init__.pyi"

#: The classes of answers that the package has itself, by command.
CLASSES = {"plan": "PlanAnswer", "predict": "PredictAnswer", "fit": "FitAnswer"}

HEAD = '''# Written by stubs.py out of the commands' options and schemas.
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, TypeVar, Union, overload

_Table = Any
_Value = Union[str, int, float, bool]
_File = Union[str, "os.PathLike[str]", bytes, Mapping[str, Any], "Answer", _Table]
_One = Union[_Value, _File, Sequence[_Value]]
_Several = Union[_One, Sequence[_One]]
_Pairs = Union[str, Sequence[str], Mapping[Any, _Several]]
_Progress = Union[bool, Callable[[str, int, int], object], None]
_T = TypeVar("_T")

class InputError(ValueError): ...
class Failed(RuntimeError): ...
class Infeasible(RuntimeError):
    reasons: list[str]

class Record(dict[str, Any]):
    def __getattr__(self, name: str) -> Any: ...

class Answer(Record):
    json: str
    exit_code: int
    stderr: list[str]
    files: dict[str, bytes]
    @property
    def fits(self) -> bool: ...
    def table(self) -> list[dict[str, Any]]: ...
    def frame(self) -> Any: ...
    def svg(self) -> str | None: ...

class PlainAnswer(Answer):
    @property
    def text(self) -> str: ...

class Sweep(list[Any]):
    questions: list[dict[str, Any]]
    def table(self) -> list[dict[str, Any]]: ...
    def frame(self) -> Any: ...

def commands() -> list[str]: ...
def schema(command: str) -> dict[str, Any]: ...
def sweep(
    questions: Iterable[Mapping[str, Any]],
    executor: Executor | None = None,
    *,
    command: str = "plan",
    chunk: int | None = None,
    progress: _Progress = None,
    return_exceptions: bool = False,
) -> Sweep: ...
'''

#: What classes have besides the fields of their schemas.
MORE = {
    "plan": [
        "@property", "def best(self) -> PlanAnswer_plans: ...", "@property", "def reasons(self) -> list[str]: ...",
    ],
    "fit": ["@property", "def toml(self) -> str: ..."],
}


def classes(name, schema, base="Record", more=()):
    """The class of an object, behind those of the objects in it."""
    inner, fields = [], list(more)
    required = schema.get("required", [])
    for field, of in schema.get("properties", {}).items():
        if not field.isidentifier() or keyword.iskeyword(field) or (base != "Record" and field == "version"):
            continue
        # Those of dictionaries are not attributes.
        if hasattr(dict, field) or (base != "Record" and field == "fits"):
            continue
        hint = type_of(f"{name}_{field}", of, inner)
        fields.append(f"{field}: {hint}" + ("" if field in required else "  # not always there"))
    lines = [f"class {name}({base}):", *(f"    {field}" for field in fields or ["..."]), ""]
    return [*inner, *lines]


def type_of(name, schema, inner):
    """The type of a value; the classes of its objects go to `inner`."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    plain = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
    hints = [plain[each] for each in types if each in plain]
    if "array" in types:
        hints.append(f"list[{type_of(name, schema.get('items', {}), inner)}]")
    if "object" in types:
        inner.extend(classes(name, schema))
        hints.append(name)
    return " | ".join(hints) or "Any"


def function(command, returns):
    """The function of a command."""
    from trainwright._commands import safe

    described = json.loads(_native.options(command))["options"]
    kinds = {"flag": "bool | None", "one": "_One | None", "several": "_Several | None", "pairs": "_Pairs | None"}
    first, others = [], []
    for option in described:
        hint = kinds.get(option["kind"], "_Several | None")
        if option["values"] and option["kind"] in ("one", "positional"):
            hint = f"Literal[{', '.join(map(repr, option['values']))}] | None"
        if option["kind"] == "positional":
            first.append(f"{safe(option['name'])}: {hint} = ...")
        else:
            needed = option["required"]
            hint = hint.removesuffix(" | None") if needed else hint
            others.append(f"{safe(option['name'])}: {hint}" + ("" if needed else " = ..."))
    common = ["threads: int | None = None", "progress: _Progress = None"]
    name = "import_plan" if command == "import" else command.replace("-", "_")
    lines = [f"    {each}," for each in [*first, "*", *others, *common]]
    return "\n".join([f"def {name}(", *lines, f") -> {returns}: ..."])


def name_of(command):
    return CLASSES.get(command) or "".join(map(str.title, command.split("-"))) + "Answer"


def stubs():
    """The whole file."""
    with_schema = _native.ask("schema", "{}", {}, [])[1].split()
    parts, functions = [HEAD], []
    for command in _native.commands():
        if command == "schema":
            continue
        returns = "PlainAnswer"
        if command in with_schema:
            returns = name_of(command)
            schema = json.loads(_native.ask("schema", json.dumps({"of": command}), {}, [])[1])
            parts.append("\n".join(classes(returns, schema, "Answer", MORE.get(command, ()))))
        functions.append(function(command, "Any" if command == "predict" else returns))
    return "\n".join([*parts, *functions]) + "\n"


if __name__ == "__main__":
    text = stubs()
    if "--check" in sys.argv:
        sys.exit(FILE.read_text() != text and f"{FILE} is not up to date: run python stubs.py")
    FILE.write_text(text)
