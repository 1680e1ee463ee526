"""A function for each command, with the options of the command line as keyword arguments."""

import inspect

from ._answers import PredictAnswer
from ._ask import ask, options_of
from ._native import InputError
from ._tables import is_table, with_columns

#: Keyword arguments of every function, which are no options.
COMMON = """
threads: threads of the call, one for each core without it; answers do not depend on it.
progress: a function of (what, done, total), True or False; without it a bar, if tqdm is installed and someone sees it.
"""


def describe(function, command, returns):
    """Gives a function the signature and the documentation of its command."""
    options, about = options_of(command)
    empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    first = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            safe(option["name"]),
            first if option["kind"] == "positional" else keyword,
            default=empty if option["required"] and option["kind"] == "positional" else None,
        )
        for option in sorted(options, key=lambda option: option["kind"] != "positional")
    ]
    parameters += [inspect.Parameter(name, keyword, default=None) for name in ("threads", "progress")]
    function.__signature__ = inspect.Signature(parameters)
    lines = [f"{safe(option['name'])}: {option['help']}{default(option)}" for option in options]
    function.__doc__ = f"{about}.\n\n{returns}\n\n" + "\n".join(lines) + "\n" + COMMON
    return function


def safe(name):
    """A name that Python allows: `from` has an underscore behind it."""
    return f"{name}_" if name in ("from", "import", "lambda") else name


def default(option):
    if option["default"] is None or "[default" in option["help"]:
        return ""
    return f" [default: {option['default']}]"


def function(command, returns="Returns an Answer.", **settings):
    """The function of a command."""
    positional = [option["name"] for option in options_of(command)[0] if option["kind"] == "positional"]

    def call(*values, threads=None, progress=None, **options):
        if len(values) > len(positional):
            raise TypeError(f"{call.__name__}() takes {len(positional)} arguments by position, not {len(values)}")
        for name, value in zip(positional, values):
            if name in options:
                raise TypeError(f"{call.__name__}() got {name} twice")
            options[name] = value
        options = {name.rstrip("_"): value for name, value in options.items()}
        return ask(command, {**settings, **options}, threads=threads, progress=progress)

    call.__name__ = call.__qualname__ = command.replace("-", "_")
    call.__module__ = "trainwright"
    return describe(call, command, returns)


plan = function("plan", "Returns a PlanAnswer: `plans`, `best`, and the reasons where nothing fits.")
simulate = function("simulate", "`plan` is a path, a plan of an answer, or an answer of `plan`. Returns an Answer.")
what_if = function("what-if", "Returns an Answer; its `frame()` has a row for each point.")
network = function("network", "Returns an Answer; its `frame()` has a row for each size.")
kernel = function("kernel")
serve = function("serve")
rl = function("rl")
fleet = function("fleet", "Returns an Answer; its `frame()` has a row for each job.")
fleet_online = function("fleet-online", "Returns an Answer; its `frame()` has a row for each policy.")
serve_plan = function("serve-plan")
goodput = function("goodput")
stragglers = function("stragglers")
replay = function("replay")
compare = function("compare", "Returns an answer with `text`.")
profile = function("profile", "Returns an answer with `text`, the table.", out="-")
export = function("export", "Returns an answer with `text`, the file of the other tool.", out="-")
import_plan = function("import", "Returns an answer with `text`, the plan's file.", out="-")
import_plan.__name__ = import_plan.__qualname__ = "import_plan"
curves = function("curves", "Returns an Answer; its `frame()` has a row for each run.")
show = function("show", "Returns an answer with `text`.")


def predict(cases=None, *, threads=None, progress=None, **options):
    tables = [options.get("kernels"), options.get("inference")]
    several = any(isinstance(table, (list, tuple)) and len(table) > 1 for table in tables)
    given = next((table for table in [cases, *tables] if table is not None), None)
    if given is None:
        raise InputError("a table is missing: give cases, kernels or inference")
    kept = [] if "out" in options or several else ["forecasts.csv"]
    options = {"cases": cases, **({"out": "forecasts.csv"} if kept else {}), **options}
    answer = ask("predict", options, threads=threads, progress=progress, kept=kept)
    if not is_table(given) or not kept:
        return answer
    table = with_columns(given, answer.files["forecasts.csv"])
    if hasattr(table, "attrs"):
        table.attrs["errors"] = dict(answer)
    return table


describe(
    predict,
    "predict",
    "A table of pandas or Arrow comes back with the columns of its forecasts; the errors are in `attrs['errors']` of a\n"
    "DataFrame. For a path, returns a PredictAnswer with the errors; its `frame()` is the table.",
)
predict.__module__ = "trainwright"


def fit(measurements=None, *, threads=None, progress=None, **options):
    kept = ["fit.toml"] if "out" not in options and measurements is not None else []
    options = {"measurements": measurements, **({"out": "fit.toml"} if kept else {}), **options}
    return ask("fit", options, threads=threads, progress=progress, kept=kept)


describe(fit, "fit", "Returns a FitAnswer, which may be given as `calibration` of other commands.")
fit.__module__ = "trainwright"
