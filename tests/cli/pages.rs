//! Pages of `docs` show the program's output.
//!
//! A block marked `console` is a session in a folder that has the repository's `examples` and `traces`: a line after `$ ` is a
//! command for the shell, what follows is all that it prints. One block finds the files of those above it. With
//! `TRAINWRIGHT_BLESS` set the test writes what is printed today into the page.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The pages, and how many sessions each has at least.
const PAGES: [(&str, usize); 2] = [("docs/tools.md", 8), ("docs/serving.md", 6)];

/// Prints that are kept: a command with what it prints.
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

    /// The standard output and standard error of a command.
    fn run(&self, command: &str) -> String {
        let program = Path::new(env!("CARGO_BIN_EXE_trainwright")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        let ran = Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n{command}")])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .output();
        String::from_utf8(ran.unwrap().stdout).unwrap()
    }

    /// A block with what its commands print today.
    fn again(&self, block: &str) -> String {
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
            let printed = self.run(&command);
            text += &printed;
            if !printed.is_empty() && !printed.ends_with('\n') {
                text.push('\n');
            }
        }
        text
    }
}

/// The page with what its sessions print today, and how many there are.
fn today(page: &str) -> (String, usize) {
    let session = Session::new();
    let mut parts = page.split("```console\n");
    let mut text = parts.next().unwrap_or_default().to_string();
    let mut count = 0;
    for part in parts {
        let (block, rest) = part.split_once("```").expect("a block ends");
        text += &format!("```console\n{}```{rest}", session.again(block));
        count += 1;
    }
    (text, count)
}

#[test]
fn the_pages_about_tools_say_what_the_program_says() {
    for (page, least) in PAGES {
        let path = Path::new(ROOT).join(page);
        let text = fs::read_to_string(&path).unwrap();
        let (today, sessions) = today(&text);
        if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
            fs::write(path, today).unwrap();
            continue;
        }
        let differs = text.lines().zip(today.lines()).find(|(text, today)| text != today);
        assert!(text == today, "{page}: first difference: {differs:?}");
        assert!(sessions >= least, "{page}: {sessions} sessions");
    }
}
