"""Trainwright: how to train and serve large models, forecast, planned and compared.

Each function is a command of the program ``trainwright``, and its keyword arguments are the command's options, with ``_``
between words. An answer holds what the program prints with ``--json``, as dictionaries whose keys are attributes too::

    >>> import trainwright as tw
    >>> answer = tw.plan(model="gpt2", cluster="dgx-a100", seq=1024, global_batch=64)
    >>> answer.best.plan.mesh.data
    8

Where a command reads a file, a function takes a path, a table of pandas or Arrow, bytes, or a dictionary. Bad input raises
``InputError`` with one line; a plan that does not fit is an answer, and its ``best`` raises ``Infeasible`` with the reasons.
"""

from ._answers import Answer, Infeasible, PlanAnswer, PredictAnswer, FitAnswer, Record
from ._ask import commands, schema
from ._commands import (
    compare, curves, export, fit, fleet, fleet_online, goodput, import_plan, kernel, network, plan, predict, profile, replay, rl, serve, serve_plan,
    show, simulate, stragglers, what_if,
)
from ._native import Failed, InputError
from ._sweep import Sweep, sweep

__all__ = [
    "Answer", "Failed", "FitAnswer", "Infeasible", "InputError", "PlanAnswer", "PredictAnswer", "Record", "Sweep",
    "commands", "compare", "curves", "export", "fit", "fleet", "fleet_online", "goodput", "import_plan", "kernel", "network", "plan", "predict", "profile",
    "replay", "rl", "schema", "serve", "serve_plan", "show", "simulate", "stragglers", "sweep", "what_if",
]
