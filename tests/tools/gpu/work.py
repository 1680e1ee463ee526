"""Programs that may take only so long, and tables whose rows are on the drive as soon as they are known."""

import collections
import csv
import os
import re
import shlex
import subprocess
import tempfile
import threading
import time

# The file of what failing programs said, if any.
log = None
lock = threading.Lock()


class NotDone(Exception):
    """Why a program did not end well, and what it had `printed` until then."""

    def __init__(self, words, printed=""):
        super().__init__(words)
        self.printed = printed


class Failed(NotDone):
    """It failed; its last words."""


class Stopped(NotDone):
    """It was not done in time, which says nothing about whether it is right."""


class Clock:
    """When all has to be done."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        """Seconds, none below zero."""
        return max(0.0, self.end - time.monotonic())

    def within(self, seconds):
        """A clock for some of what is left."""
        return Clock(min(seconds, self.left()))


def call(command, clock, environment=None):
    """What a program prints. Raises Failed or Stopped."""
    left = clock.left()
    if left <= 0:
        raise Stopped("no time was left to begin")
    try:
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=left, env=environment)
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        raise Stopped(f"after {left:.0f} s", printed if isinstance(printed, str) else printed.decode(errors="replace"))
    except OSError as error:
        raise Failed(str(error))
    if ran.returncode != 0:
        raise failure(command, ran)
    return ran.stdout


def follow(command, clock, on_line, environment=None):
    """What a program prints, as `call`; `on_line` gets each line as soon as it is written."""
    left = clock.left()
    if left <= 0:
        raise Stopped("no time was left to begin")
    lines, expired = [], threading.Event()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            ran = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env=environment)
        except OSError as error:
            raise Failed(str(error))

        def expire():
            expired.set()
            ran.kill()

        timer = threading.Timer(left, expire)
        timer.start()
        try:
            for line in ran.stdout:
                lines.append(line)
                on_line(line.rstrip("\n"))
            ran.wait()
        finally:
            timer.cancel()
            ran.kill()
            ran.stdout.close()
            ran.wait()
        printed = "".join(lines)
        if ran.returncode != 0:
            if expired.is_set():
                raise Stopped(f"after {left:.0f} s", printed)
            errors.seek(0)
            raise failure(command, subprocess.CompletedProcess(command, ran.returncode, printed, errors.read()))
    return printed


def failure(command, ran):
    """The error of a program that failed; all of its output goes into the log."""
    keep(command, ran)
    return Failed(last_words(ran.stderr) or last_words(ran.stdout) or f"exit code {ran.returncode}", ran.stdout)


def last_words(said):
    """The last line that tells of an error, or the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(error|exception|failed)\b", line, re.IGNORECASE)]
    return (errors or lines or [""])[-1][:400]


def keep(command, ran):
    """All that a program said that failed, for who looks for the reason later."""
    if log is None:
        return
    with lock, open(log, "a") as file:
        file.write(f"{shlex.join(str(word) for word in command)}\nexit code {ran.returncode}\n{ran.stdout[-5000:]}\n{ran.stderr[-20000:]}\n\n")


def foreign_environment():
    """For programs that find their libraries themselves: without the folders that tests/gpu.sh has added for ours."""
    environment = dict(os.environ)
    if "LD_LIBRARY_PATH_BEFORE" in environment:
        environment["LD_LIBRARY_PATH"] = environment.pop("LD_LIBRARY_PATH_BEFORE")
        if not environment["LD_LIBRARY_PATH"]:
            del environment["LD_LIBRARY_PATH"]
    return environment


class Table:
    """A CSV file of which each row is written at once; threads may share it."""

    def __init__(self, path, head):
        self.path, self.head, self.rows = path, head, []
        path.unlink(missing_ok=True)
        self.add(head)
        self.rows.clear()

    def add(self, cells, line=None):
        """A row, and a line for people."""
        assert len(cells) == len(self.head), (cells, self.head)
        with lock:
            with open(self.path, "a", newline="") as file:
                csv.writer(file).writerow(cells)
            self.rows.append(cells)
            if line is not None:
                print(line, flush=True)

    def counts(self, column):
        """`58 right, 2 stopped`: how often each word is in a column."""
        at = self.head.index(column)
        counted = collections.Counter(row[at] for row in self.rows)
        return ", ".join(f"{count} {word}" for word, count in counted.most_common())
