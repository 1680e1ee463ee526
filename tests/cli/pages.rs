//! Pages show the program's output.
//!
//! A block marked `console` is a session in a folder that has the repository's `examples` and `traces`: a line after `$ ` is a
//! command for the shell, what follows is all that it prints. One block finds the files of those above it. A block of
//! commands with a block of `text` after it, or after one paragraph, is the same in two parts. In this text a line of
//! `…` stands for any lines. `<!-- not run -->` before commands leaves them out: they need a file of the reader.
//! `<!-- NAME -->` before a block of TOML makes it a file.
//!
//! With `TRAINWRIGHT_BLESS` set the test writes what is printed today into the pages. Pages whose commands take minutes
//! are checked where `TRAINWRIGHT` names a program, such as one that is built for release. `TRAINWRIGHT_PAGE` names the only page.

use crate::{executable, stand_in};
use std::cmp::Reverse;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The pages, and how many blocks that the program prints each has at least.
const PAGES: [(&str, usize); 7] = [
    ("README.md", 1),
    ("docs/gpu.md", 1),
    ("docs/inference.md", 1),
    ("docs/network.md", 4),
    ("docs/parallelism.md", 1),
    ("docs/serving.md", 7),
    ("docs/tools.md", 8),
];
const SLOW: [(&str, usize); 3] = [("docs/fleet.md", 2), ("docs/rl.md", 6), ("docs/what-if.md", 6)];
const LEFT_OUT: &str = "…";

/// Commands, and what they print, in a folder of their own.
struct Session {
    folder: TempDir,
}

impl Session {
    fn new() -> Session {
        let folder = TempDir::new().unwrap();
        for name in ["examples", "traces"] {
            symlink(Path::new(ROOT).join(name), folder.path().join(name)).unwrap();
        }
        Session { folder }
    }

    /// The standard output of a command, and its standard error if `all`.
    fn run(&self, command: &str, all: bool) -> String {
        let program = executable();
        let folder = program.parent().unwrap().display().to_string();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        let errors = if all { "exec 2>&1" } else { "exec 2>/dev/null" };
        let ran = Command::new("sh")
            .args(["-c", &format!("{errors}\n{command}")])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .output();
        String::from_utf8(ran.unwrap().stdout).unwrap()
    }

    /// A `console` block with what its commands print today.
    fn console(&self, block: &str) -> String {
        let mut text = String::new();
        let mut lines = block.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(first) = line.strip_prefix("$ ") else { continue };
            let mut command = first.to_string();
            text += &format!("{line}\n");
            while command.ends_with('\\') {
                let next = lines.next().expect("a backslash is followed by a line");
                text += &format!("{next}\n");
                command = format!("{command}\n{next}");
            }
            let printed = self.run(&command, true);
            text += &printed;
            if !printed.is_empty() && !printed.ends_with('\n') {
                text.push('\n');
            }
        }
        text
    }

    /// A `text` block with what the block of commands before it prints today.
    fn text(&self, commands: &[String], shown: &str) -> String {
        let printed: String = commands.iter().map(|command| self.run(command, false)).collect();
        let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
        let mut text = String::new();
        let mut at = 0;
        for (index, part) in shown.split(&format!("{LEFT_OUT}\n")).enumerate() {
            if index > 0 {
                text += &format!("{LEFT_OUT}\n");
            }
            let part: Vec<&str> = part.lines().collect();
            let fit = |start: &usize| -> usize {
                part.iter().zip(&printed[*start..]).map(|(shown, line)| likeness(shown, line)).sum()
            };
            let last = printed.len().saturating_sub(part.len()).max(at);
            let start = (at..=last).min_by_key(|start| Reverse(fit(start))).unwrap_or(at);
            at = (start + part.len()).min(printed.len());
            text.extend(printed[start..at].iter().map(|line| format!("{line}\n")));
        }
        text
    }
}

/// How alike two lines are, their numbers aside.
fn likeness(shown: &str, printed: &str) -> usize {
    let words = |line: &str| -> Vec<String> {
        line.split(|letter: char| !letter.is_alphabetic())
            .map(str::to_string)
            .filter(|w| !w.is_empty())
            .collect()
    };
    let of_printed = words(printed);
    let shared = words(shown).into_iter().filter(|word| of_printed.contains(word)).count();
    shared + if shown == printed { 100 } else { 0 }
}

/// The block's calls of the program, one a line.
fn commands(block: &str) -> Vec<String> {
    let whole = block.replace("\\\n", " ").replace("cargo run --release -- ", "trainwright ");
    whole.lines().filter(|line| line.starts_with("trainwright ")).map(str::to_string).collect()
}

/// What stands alone in a comment at the end of the text before a block.
fn comment(before: &str) -> Option<&str> {
    before.trim_end().strip_suffix(" -->")?.rsplit_once("<!-- ").map(|(_, comment)| comment)
}

/// The page with what its commands print today, and how many blocks are made of that.
fn today(page: &str) -> (String, usize) {
    let session = Session::new();
    let mut text = String::new();
    let mut count = 0;
    // The last block's calls, if they wait for their text.
    let mut waiting = Vec::new();
    // Between the fences are text and blocks by turns.
    for (index, part) in page.split("```").enumerate() {
        let fence = if index > 0 { "```" } else { "" };
        text += fence;
        if index % 2 == 0 {
            let after = part.trim_matches('\n');
            if after.contains("\n\n") || after.contains("\n#") || after.starts_with('#') {
                waiting.clear();
            }
            text += part;
            continue;
        }
        let (kind, block) = part.split_once('\n').expect("a block has lines");
        let said = comment(text.strip_suffix(fence).unwrap());
        let calls = std::mem::take(&mut waiting);
        let made = match kind {
            "console" => session.console(block),
            "text" if !calls.is_empty() => session.text(&calls, block),
            _ => block.to_string(),
        };
        match (kind, said) {
            ("toml", Some(name)) => fs::write(session.folder.path().join(name), block).unwrap(),
            ("" | "sh", None) => waiting = commands(block),
            _ => (),
        }
        count += usize::from(kind == "console" || !calls.is_empty() && kind == "text");
        text += &format!("{kind}\n{made}");
    }
    (text, count)
}

#[test]
fn pages_show_what_the_program_prints() {
    let slow = SLOW.into_iter().filter(|_| stand_in().is_some());
    let only = std::env::var("TRAINWRIGHT_PAGE").ok();
    let pages: Vec<(&str, usize)> = PAGES
        .into_iter()
        .chain(slow)
        .filter(|(page, _)| only.as_ref().is_none_or(|only| only == page))
        .collect();
    assert!(!pages.is_empty(), "{only:?} is no page");
    for (page, least) in pages {
        let path = Path::new(ROOT).join(page);
        let text = fs::read_to_string(&path).unwrap();
        let (today, blocks) = today(&text);
        if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
            fs::write(path, today).unwrap();
            continue;
        }
        let differs = text.lines().zip(today.lines()).find(|(text, today)| text != today);
        assert!(text == today, "{page}: first difference: {differs:?}");
        assert!(blocks >= least, "{page}: {blocks} blocks");
    }
}
