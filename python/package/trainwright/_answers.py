"""Answers: what a command prints as JSON, with tables and pictures."""

import json
from html import escape

from ._tables import frame_of, read_csv


class Infeasible(RuntimeError):
    """No plan fits. `reasons` is a list of texts."""

    def __init__(self, reasons):
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)

    def __reduce__(self):
        return type(self), (self.reasons,)


class Record(dict):
    """A dictionary whose keys are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            known = ", ".join(map(str, self))
            raise AttributeError(f"there is no {name!r} here; there are {known}") from None

    def __dir__(self):
        return [*super().__dir__(), *(key for key in self if isinstance(key, str) and key.isidentifier())]


def read(text):
    """JSON with records for its objects."""
    return json.loads(text, object_hook=Record)


class Answer(Record):
    """What a command prints with ``--json``, as a dictionary.

    json: the same as text, byte for byte. exit_code: 0, or 3 if nothing fits. stderr: the program's remarks.
    asked: the command and its options. files: written files that were kept in memory, by name.
    """

    #: The option that draws a picture; None if the command has none.
    draws = "svg"

    def __init__(self, request, code, text, remarks, files):
        super().__init__(read(text) if text.startswith("{") else {})
        self.__dict__.update(
            json=text, exit_code=code, stderr=list(remarks), asked=request, files=dict(files), _picture=None
        )

    def __reduce__(self):
        kept = self.__dict__
        return type(self), (self.asked, kept["exit_code"], kept["json"], kept["stderr"], kept["files"])

    def __str__(self):
        return self.json

    def __repr__(self):
        fields = ", ".join(f"{key}={brief(value)}" for key, value in self.items())
        return f"{type(self).__name__}({fields})"

    @property
    def fits(self):
        """Whether it fits: the program's exit code is not 3."""
        return self.exit_code != 3

    def table(self):
        """The main table of the answer, a list of dictionaries."""
        return ROWS.get(self.asked.command, lambda answer: [flat(answer)])(self)

    def frame(self):
        """The main table of the answer as a pandas.DataFrame."""
        return frame_of(self.table())

    def svg(self):
        """The answer's picture, SVG; None if it has none. The question is asked again for it, once."""
        if self._picture is None and self.draws and self.fits:
            request = self._of_picture()
            self.__dict__["_picture"] = request.ask()[3].get("picture.svg", b"").decode()
        return self._picture or None

    def _of_picture(self):
        return self.asked.with_files(**{self.draws: "picture.svg"})

    def as_file(self):
        """The answer as a file that other commands read."""
        raise TypeError(f"the answer of {self.asked.command} is no file; give a path or a part of it")

    def _repr_html_(self):
        return html_table(self.table()) + (self.svg() or "")


class PlanAnswer(Answer):
    """The answer of `plan`."""

    @property
    def best(self):
        """The best plan with its forecast.

        Raises Infeasible, with the reasons, if there is none.
        """
        if self["verdict"] != "found":
            raise Infeasible(self.reasons)
        return self["plans"][0]

    @property
    def reasons(self):
        """Why there is no plan; empty if there is one."""
        if self["verdict"] == "found":
            return []
        broken = [
            f"{each['plans']}: {each['limit']}: {gib(each['needs_bytes'])} of {gib(each['has_bytes'])} GiB"
            for each in self.get("broken", [])
        ]
        return [*(broken or [self.get("reason", self["verdict"])]), *self.get("remedies", [])]

    @property
    def fits(self):
        return self["verdict"] == "found"

    def as_file(self):
        """The best plan as TOML, which `simulate` and others read."""
        from ._ask import toml_of

        return toml_of(self.best["plan"])

    def _of_picture(self):
        from ._ask import request

        return request("simulate", {"plan": self.best["plan"], "svg": "picture.svg"}, kept=["picture.svg"])

    def _repr_html_(self):
        if not self.fits:
            return "<ul>" + "".join(f"<li>{escape(reason)}</li>" for reason in self.reasons) + "</ul>"
        return super()._repr_html_()


class SimulateAnswer(Answer):
    """The answer of `simulate`."""

    def as_file(self):
        """The plan as TOML."""
        from ._ask import toml_of

        return toml_of(self["plan"])

    @property
    def fits(self):
        return self["forecast"]["fits"]

    def svg(self):
        if self._picture is None:
            self.__dict__["_picture"] = self._of_picture().ask()[3]["picture.svg"].decode()
        return self._picture


class PredictAnswer(Answer):
    """The answer of `predict` to a file: the errors, and the table with its forecasts."""

    draws = None

    def frame(self):
        """The table with its forecasts as a pandas.DataFrame."""
        return read_csv(next(iter(self.files.values())))

    def table(self):
        return [flat(self)]


class FitAnswer(Answer):
    """The answer of `fit`: factors and errors. It may be given as a `calibration`."""

    draws = None

    @property
    def toml(self):
        """The calibration, as a file that `calibration` takes."""
        return next(iter(self.files.values())).decode()

    def as_file(self):
        return self.toml


class PlainAnswer(Answer):
    """The answer of a command without JSON: `text`."""

    draws = None

    @property
    def text(self):
        """What the program prints."""
        return self.json

    def table(self):
        return [{"text": self.json}]

    def as_file(self):
        return self.json

    def __repr__(self):
        return f"PlainAnswer({self.json!r})"

    def _repr_html_(self):
        return f"<pre>{escape(self.json)}</pre>"


#: Commands whose answers are more than a dictionary.
CLASSES = {"plan": PlanAnswer, "simulate": SimulateAnswer, "predict": PredictAnswer, "fit": FitAnswer}
#: Commands without JSON.
PLAIN = {"export", "import", "compare", "profile", "show", "schema"}
#: Commands that draw.
DRAWN = {"plan", "simulate", "network", "what-if", "serve", "serve-plan", "curves"}


def answer_class(command):
    """The class of a command's answers."""
    if command in PLAIN:
        return PlainAnswer
    if command in CLASSES:
        return CLASSES[command]
    return Answer if command in DRAWN else Undrawn


class Undrawn(Answer):
    """An answer without a picture."""

    draws = None


def gib(count):
    return f"{count / 2**30:.1f}"


def brief(value):
    """A number or a text; of lists and objects how many entries they have."""
    if isinstance(value, list):
        return f"[{len(value)}]"
    if isinstance(value, dict):
        return f"{{{len(value)}}}"
    return repr(value)


def flat(answer, prefix=""):
    """The numbers and texts of an object in one row; those of inner objects as outer.inner."""
    row = {}
    for key, value in answer.items():
        if isinstance(value, dict):
            row.update(flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            row[prefix + key] = value
    return row


def plan_rows(answer):
    """A row for each plan."""
    def row(ranked):
        plan, forecast = ranked["plan"], ranked["forecast"]
        return {
            "rank": ranked["rank"],
            "nodes": ranked["nodes"],
            "gpus": ranked["gpus"],
            **{key: size for key, size in plan["mesh"].items() if isinstance(size, int)},
            **{key: plan[key] for key in ("virtual_stages", "micro_batch", "schedule", "data_sharding")},
            "step_time_s": forecast["step_time_s"],
            "expected_s": ranked["ordered_by_s"],
            "tokens_per_s": forecast["tokens_per_s"],
            "mfu_causal_attention": forecast["mfu_causal_attention"],
            "peak_memory_gib": forecast["peak_memory_bytes"] / 2**30,
            "limited_by": ranked["limited_by"],
        }

    return [row(ranked) for ranked in answer.get("plans", [])]


def point_rows(answer):
    """A row for each point, the varied inputs first; one that has the name of a column is called varied_NAME."""
    def row(point):
        cells = {name: cell for name, cell in point.items() if name != "point"}
        varied = {f"varied_{name}" if name in cells else name: value for name, value in point["point"].items()}
        return {**varied, **cells}

    return [row(point) for point in answer["points"]]


def network_rows(answer):
    """A row for each size of each sweep."""
    return [
        {"collective": sweep["collective"], "ranks": len(sweep["ranks"]), **row}
        for sweep in answer["sweeps"]
        for row in sweep["rows"]
    ]


#: The main table of each command whose answer is not one row.
ROWS = {
    "plan": plan_rows,
    "network": network_rows,
    "what-if": point_rows,
    "simulate": lambda answer: [flat({key: value for key, value in answer["forecast"].items() if key != "report"})],
    "serve-plan": lambda answer: [flat(pool) for pool in answer["pools"]],
    "rl": lambda answer: [{key: value for key, value in plan.items() if key not in ("phases", "memory", "training")} for plan in answer["plans"]],
    "fleet": lambda answer: [flat(job) for job in answer["jobs"]],
    "fleet-online": lambda answer: [flat(policy) for policy in answer["policies"]],
    "curves": lambda answer: list(answer["runs"]),
    "fit": lambda answer: list(answer["factors"]),
}


def html_table(rows):
    """Rows as a table of HTML, without colours of its own."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value):
        if isinstance(value, float):
            return f"{value:.6g}"
        return "" if value is None else escape(str(value))

    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(row.get(name))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
