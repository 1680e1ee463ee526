"""Requests: a command with its options, and files in memory."""

import json
import os
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

from . import _native
from ._answers import Answer, answer_class
from ._tables import csv_of, is_table


class Request(NamedTuple):
    """A command, its options as JSON, its files in memory by name, and the names of the files that stay in memory."""

    command: str
    options: str
    inputs: dict
    kept: list

    def ask(self, threads=None, progress=None):
        """The answer's exit code, text, remarks and kept files. `progress` is called with (what, done, total)."""
        return _native.ask(self.command, self.options, self.inputs, self.kept, threads, progress)

    def answer(self, asked):
        """The answer as a dictionary."""
        return answer_class(self.command)(self, *asked)

    def with_files(self, **files):
        """The same question, which keeps these written files in memory: option=name."""
        options = {**json.loads(self.options), **files}
        return self._replace(options=json.dumps(options), kept=[*self.kept, *files.values()])


@lru_cache(maxsize=None)
def options_of(command):
    """The options of a command, a list of dictionaries, and what the command does."""
    described = json.loads(_native.options(command))
    return described["options"], described["about"]


def request(command, options, kept=()):
    """A request. Values that are tables, dictionaries, bytes or answers become files in memory."""
    inputs = {}
    kinds = {option["name"]: option["kind"] for option in options_of(command)[0]}

    def value_of(name, value):
        if isinstance(value, (list, tuple, range, set, frozenset)):
            values = sorted(value) if isinstance(value, (set, frozenset)) else value
            return [value_of(f"{name}-{index + 1}", each) for index, each in enumerate(values)]
        if isinstance(value, dict) and kinds.get(name) == "pairs":
            return {str(key): value_of(f"{name}-{key}", each) for key, each in value.items()}
        file = file_of(name, value)
        if file is None:
            return plain(value)
        inputs[file[0]] = file[1]
        return file[0]

    given = {name: value_of(name, value) for name, value in options.items() if value is not None}
    return Request(command, json.dumps(given), inputs, list(kept))


def file_of(name, value):
    """The name and the bytes of a value that is a file in memory, else None."""
    if is_table(value):
        return f"{name}.csv", csv_of(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{name} in memory", bytes(value)
    if isinstance(value, Answer):
        text = value.as_file()
        return f"{name}.toml", text.encode()
    if isinstance(value, dict):
        if name == "model":
            return "model.json", json.dumps(value).encode()
        return f"{name}.toml", toml_of(value.get("plan", value) if name == "plan" else value).encode()
    return None


def plain(value):
    """A number, a text or a bool of Python."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and not isinstance(value, str):
        return value.item()
    return value if isinstance(value, (str, bool, int, float)) else str(value)


def toml_of(table):
    """A dictionary as TOML, as the files of plans and clusters have it."""
    return _native.toml_of(json.dumps(table))


def ask(command, options, *, threads=None, progress=None, kept=()):
    """Runs a command."""
    asked = request(command, options, kept)
    with watching(progress) as watch:
        return asked.answer(asked.ask(threads, watch))


@contextmanager
def watching(progress):
    """What is called with (what, done, total): `progress` itself, or a bar of tqdm.

    None is a bar if tqdm is installed and someone can see it; True insists on it, False has none.
    """
    if callable(progress) or progress is False:
        yield progress or None
        return
    try:
        tqdm = bar_class()
    except ImportError:
        if progress:
            raise
        yield None
        return
    bar = None

    def show(what, done, total):
        nonlocal bar
        if bar is None:
            # With `disable=None` the bar is left out where standard error is no terminal.
            bar = tqdm(total=total, leave=False, disable=False if progress else None)
        bar.total = total
        bar.set_description_str(what, refresh=False)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


def bar_class():
    """The bars of tqdm: of a notebook, where it can show them."""
    if find_spec("ipywidgets"):
        from tqdm.auto import tqdm
    else:
        from tqdm import tqdm
    return tqdm


def commands():
    """The commands that have functions here, by the names of the command line."""
    return _native.commands()


def schema(command):
    """The JSON Schema of a command's answer, a dictionary."""
    return json.loads(_native.ask("schema", json.dumps({"of": command}), {}, [])[1])
