"""What the tests share: the program itself, whose answers are those of the package."""

import os
import shutil
import subprocess

import pytest

QUESTION = {"model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 16, "space": "core"}


def program():
    """The program: that of TRAINWRIGHT, or of the path."""
    return os.environ.get("TRAINWRIGHT") or shutil.which("trainwright")


@pytest.fixture
def run():
    """Runs the program and gives back its exit code and output, bytes."""
    if program() is None:
        pytest.skip("no program: set TRAINWRIGHT")

    def run(*arguments, **options):
        return subprocess.run([program(), *arguments], capture_output=True, **options)

    return run


@pytest.fixture
def question():
    """A question that takes a fraction of a second."""
    return dict(QUESTION)


def arguments(options):
    """Keyword arguments as the command line has them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
