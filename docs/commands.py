"""Runs the commands of README.md and docs/ whose output the page shows, and compares.

python3 docs/commands.py PROGRAM [PAGE...]          ends with 1 where a page shows something else than PROGRAM prints
python3 docs/commands.py PROGRAM --write [PAGE...]  writes what it prints into the pages

A block of commands is followed by a `text` block, after at most one paragraph. The lines of this block, up to a line of
`…`, follow one another in the output of the commands. A comment `<!-- not run -->` before the commands leaves them out:
they need a file of the reader, or another machine. `<!-- NAME -->` before a block of TOML puts it into a file of this name.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"^```(?:sh)?\n(?P<commands>(?:(?!```).*\n)+)```\n"
    r"(?:\n(?!```|#|<).*)?(?:\n\S.*)*\n*"
    r"^```text\n(?P<shown>(?:(?!```).*\n)+)```$",
    re.MULTILINE,
)
FILE = re.compile(r"^<!-- (?P<name>[\w.-]+) -->\n```toml\n(?P<text>(?:(?!```).*\n)+)```$", re.MULTILINE)
PROGRAM = re.compile(r"^(?:cargo run --release --|trainwright) ")


def commands(block):
    """The argument lists of a block's calls of the program."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(PROGRAM.sub("", line), comments=True) for line in lines if PROGRAM.match(line)]


def output(program, block, folder):
    """What the block's commands print."""
    printed = ""
    for arguments in commands(block):
        run = subprocess.run([program, *arguments, "--quiet"], cwd=folder, capture_output=True, text=True)
        if run.returncode not in (0, 3):
            sys.exit(f"{shlex.join(arguments)}: {run.stderr.strip()}")
        printed += run.stdout
    return [line.rstrip() for line in printed.splitlines()]


def likeness(shown, line):
    """How alike two lines are, their numbers aside."""
    bare = [re.sub(r"[\d.,]+", "0", re.sub(r"\s+|─+", " ", text)) for text in (shown, line)]
    return SequenceMatcher(None, *bare, autojunk=False).ratio() + (shown == line)


def now(shown, printed):
    """The lines of a block as the program prints them: each part of it from where it fits best."""
    made, at, part = [], 0, []
    for line in [*shown, "…"]:
        if line != "…":
            part.append(line)
            continue
        if part:
            starts = range(at, max(at, len(printed) - len(part)) + 1)
            start = max(starts, key=lambda start: sum(map(likeness, part, printed[start:])))
            made += printed[start:start + len(part)]
            at = start + len(part)
        made.append(line)
        part = []
    return made[:-1]


def renew(program, page, folder):
    """The page with what its commands print."""
    def renewed(match):
        if not commands(match["commands"]) or text[:match.start()].rstrip().endswith("<!-- not run -->"):
            return match[0]
        shown = match["shown"].splitlines()
        made = now(shown, output(program, match["commands"], folder))
        start = match.start("shown") - match.start()
        return match[0][:start] + "".join(f"{line}\n" for line in made) + match[0][start + len(match["shown"]):]

    text = page.read_text(encoding="utf-8")
    for file in FILE.finditer(text):
        (Path(folder) / file["name"]).write_text(file["text"], encoding="utf-8")
    return BLOCK.sub(renewed, text)


def main():
    options = [argument for argument in sys.argv[1:] if argument != "--write"]
    program = str(Path(options[0]).resolve())
    pages = [Path(page) for page in options[1:]] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    changed = []
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("examples", "traces"):
                (Path(folder) / name).symlink_to(ROOT / name)
            made = renew(program, page, folder)
        if made != page.read_text(encoding="utf-8"):
            changed.append(page)
            if "--write" in sys.argv:
                page.write_text(made, encoding="utf-8")
    if changed and "--write" not in sys.argv:
        sys.exit(f"{', '.join(map(str, changed))}: shows something else: python3 docs/commands.py PROGRAM --write")


if __name__ == "__main__":
    main()
