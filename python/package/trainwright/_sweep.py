"""Many questions over the workers of an executor."""

import multiprocessing
import os
from concurrent.futures import Executor, ProcessPoolExecutor

from ._answers import flat, html_table
from ._ask import request, watching
from ._tables import frame_of


class Sweep(list):
    """The answers of a sweep, in the order of the questions."""

    def __init__(self, questions, answers):
        super().__init__(answers)
        self.questions = questions

    def __reduce__(self):
        return type(self), (self.questions, list(self))

    def table(self):
        """A row for each answer: the question's options, and the first row of the answer's table, or the error."""
        return [
            {**flat(question), **({"error": str(answer)} if isinstance(answer, Exception) else first(answer))}
            for question, answer in zip(self.questions, self)
        ]

    def frame(self):
        """The rows as a pandas.DataFrame."""
        return frame_of(self.table())

    def _repr_html_(self):
        return html_table(self.table())


def first(answer):
    rows = answer.table()
    return rows[0] if rows else {"error": "; ".join(getattr(answer, "reasons", ["no answer"]))}


def answers_of(requests):
    """The answers of some requests, each with one thread: what a worker runs. An error stands for its answer."""
    return [answer_or_error(each) for each in requests]


def answer_or_error(asked):
    try:
        return asked.ask(threads=1)
    except (ValueError, RuntimeError) as error:
        return error


def sweep(questions, executor=None, *, command="plan", chunk=None, progress=None, return_exceptions=False):
    """Asks many questions over the workers of an executor.

    questions: dictionaries of keyword arguments of `command`; a question may name its own as "command".
    executor: any `concurrent.futures.Executor`, as Dask's `Client.get_executor()` and `mpi4py.futures` have it. It stays
        open. Without one, as many processes as there are cores.
    chunk: questions that a worker gets at once; without it, a few times as many parts as there are cores.
    progress: as that of `plan`.
    return_exceptions: the answer to a question with bad input is the exception; without it the first one is raised.

    Returns a Sweep, a list of the answers in the order of the questions. They do not depend on the executor. Files that
    questions name by path are read by the workers.
    """
    questions = [dict(question) for question in questions]
    requests = [request(question.get("command", command), options(question)) for question in questions]
    workers = os.cpu_count() or 1
    chunk = chunk or max(1, min(32, len(requests) // (4 * workers)))
    parts = [requests[start:start + chunk] for start in range(0, len(requests), chunk)]
    own = None
    if executor is None:
        # A process that is a copy of one with threads may wait for ever: new ones are begun.
        context = multiprocessing.get_context("spawn")
        executor = own = ProcessPoolExecutor(max(1, min(workers, len(parts))), mp_context=context)
    try:
        asked = run(executor, parts, len(requests), progress)
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)
    answers = []
    for each, result in zip(requests, asked):
        if isinstance(result, Exception) and not return_exceptions:
            raise result
        answers.append(result if isinstance(result, Exception) else each.answer(result))
    return Sweep(questions, answers)


def run(executor: Executor, parts, total, progress):
    futures = [executor.submit(answers_of, part) for part in parts]
    asked = []
    try:
        with watching(progress) as watch:
            for future in futures:
                asked.extend(future.result())
                if watch:
                    watch("questions", len(asked), total)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return asked


def options(question):
    return {name.rstrip("_"): value for name, value in question.items() if name != "command"}
