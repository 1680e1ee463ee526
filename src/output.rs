//! Where answers go: standard output, and files that are either complete or as they were before. In a call of the library,
//! to its caller.

use crate::calls;
use crate::error::{CliError, refuse};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Columns of drawings without a terminal.
const COLUMNS: usize = 100;

/// The exit code of an interrupted program, as shells expect it: 128 and the number of the signal.
const INTERRUPTED: i32 = 130;

static QUIET: AtomicBool = AtomicBool::new(false);

/// Whether the program was interrupted and ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Temporary files and folders that are being written.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// How tables are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// Columns under each other.
    Text,
    /// Markdown's.
    Markdown,
    /// CSV, without what stands around the tables.
    Csv,
}

static TABLES: Mutex<(Tables, Vec<String>)> = Mutex::new((Tables::Text, Vec::new()));

/// Writes tables as `--format` says from now on.
pub fn write_tables_as(format: Option<&str>) {
    tables().0 = match format {
        Some("md") => Tables::Markdown,
        Some("csv") => Tables::Csv,
        _ => Tables::Text,
    };
}

/// How tables are written; those of calls of the library as text.
pub fn tables_as() -> Tables {
    if calls::current().is_some() { Tables::Text } else { tables().0 }
}

/// Keeps a table in CSV, which `print` writes instead of the text around it.
pub fn keep_table(csv: String) {
    tables().1.push(csv);
}

fn tables() -> MutexGuard<'static, (Tables, Vec<String>)> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The arguments with `--json` for `--format json`.
pub fn as_json(mut arguments: Vec<String>) -> Vec<String> {
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let pair = arguments[..end].windows(2).position(|words| words == ["--format", "json"]);
    if let Some(at) = pair {
        arguments.splice(at..at + 2, ["--json".to_string()]);
    } else if let Some(at) = arguments[..end].iter().position(|word| word == "--format=json") {
        arguments[at] = "--json".into();
    }
    arguments
}

/// Leaves out progress and remarks from now on.
pub fn be_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether progress and remarks are not wanted.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// What a signal to end does instead; false if the program is to end at once.
type Instead = Box<dyn Fn() -> bool + Send + Sync>;

static INSTEAD: OnceLock<Instead> = OnceLock::new();

/// Asks `instead` at every signal to end: if it returns true, the program goes on.
pub fn when_interrupted(instead: impl Fn() -> bool + Send + Sync + 'static) {
    // A program has one command.
    let _ = INSTEAD.set(Box::new(instead));
}

/// Removes unfinished files when the program receives a signal to end.
pub fn leave_nothing_when_interrupted() {
    // Where there are no signals a file may be left, which is no reason to do nothing.
    let _ = ctrlc::set_handler(interrupt);
}

/// Does what a signal to end does.
pub fn interrupt() {
    if INSTEAD.get().is_some_and(|instead| instead()) {
        return;
    }
    IS_ENDING.store(true, Ordering::SeqCst);
    // Kept until the program has ended, so that no other file can be begun.
    let unfinished = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    for path in unfinished.iter() {
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
    trainwright_executor::abandon_checkpoints();
    std::process::exit(INTERRUPTED);
}

/// Waits for the program's end if it was interrupted: errors after that come from removed files and are not worth a message.
pub fn end_if_interrupted() {
    while IS_ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Columns of the terminal; without one always the same number, so that the same arguments give the same bytes.
pub fn columns() -> usize {
    if calls::current().is_some() {
        return COLUMNS;
    }
    console::Term::stdout().size_checked().map_or(COLUMNS, |(_, columns)| usize::from(columns).max(40))
}

/// Whether one of the files that the arguments name goes to standard output.
///
/// # Errors
/// `Argument` if standard output is wanted twice, or another file is.
pub fn stdout_is_taken(files: &[(&str, &Option<String>)], json: bool) -> Result<bool, CliError> {
    let given = files.iter().filter_map(|(argument, path)| Some((*argument, path.as_deref()?)));
    let given: Vec<(&str, &str)> = given.collect();
    let takers: Vec<&str> =
        given.iter().filter(|(_, path)| *path == "-").map(|(argument, _)| *argument).collect();
    if let [first, rest @ ..] = takers.as_slice()
        && let Some(other) = rest.first().copied().or(json.then_some("--json"))
    {
        return Err(refuse(first, "-", format!("with `{other}` standard output is taken: name a file")));
    }
    for (index, (argument, path)) in given.iter().enumerate() {
        if let Some((earlier, _)) = given[..index].iter().find(|(_, other)| other == path) {
            return Err(refuse(argument, path, format!("`{earlier}` writes that file too: name another")));
        }
    }
    Ok(!takers.is_empty())
}

/// Prints to standard output. A reader that has seen enough and closed it is no error.
///
/// # Errors
/// `Writing`.
pub fn print(text: &str) -> Result<(), CliError> {
    if let Some(call) = calls::current() {
        call.written().printed.extend_from_slice(text.as_bytes());
        return Ok(());
    }
    let kept = std::mem::take(&mut tables().1);
    let tables = kept.join("\n");
    let text = if kept.is_empty() { text } else { &tables };
    let mut out = io::stdout().lock();
    finish("standard output", "-", out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Remarks something on standard error, unless the program is to be quiet.
pub fn remark(text: &str) {
    if !is_quiet() {
        say(text);
    }
}

/// Prints a line on standard error; a failure of that is not worth another error.
pub fn say(text: &str) {
    match calls::current() {
        Some(call) => call.written().remarks.push(text.into()),
        None => {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Writes to the file that `argument` names, `-` for standard output.
///
/// A file gets its name only when it is complete: `content` writes to a temporary one in the same folder. Anything but a
/// plain file, such as a pipe or `/dev/null`, is written to directly.
///
/// # Errors
/// `Writing`; the file is then as it was before.
pub fn write(
    argument: &'static str,
    path: &str,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    let written = match (path, calls::current()) {
        (path, Some(call)) if path == "-" || call.keeps(path) => keep(&call, path, content),
        ("-", _) => content(&mut io::stdout().lock()),
        (path, _) => write_file(Path::new(path), content),
    };
    finish(argument, path, written)
}

/// Writes text or bytes to the file that `argument` names, as `write` does.
///
/// # Errors
/// `Writing`.
pub fn save(argument: &'static str, path: &str, content: impl AsRef<[u8]>) -> Result<(), CliError> {
    write(argument, path, |out| out.write_all(content.as_ref()))
}

/// `save` if the argument was given; only then `content` is called.
///
/// # Errors
/// `Writing`.
pub fn save_given<C: AsRef<[u8]>>(
    argument: &'static str,
    path: &Option<String>,
    content: impl FnOnce() -> C,
) -> Result<(), CliError> {
    path.as_ref().map_or(Ok(()), |path| save(argument, path, content()))
}

/// Saves a file in the folder that `argument` names, which is made if it is not there.
///
/// # Errors
/// `Writing`.
pub fn save_in(
    argument: &'static str,
    folder: &str,
    name: &str,
    content: impl AsRef<[u8]>,
) -> Result<(), CliError> {
    let made = fs::create_dir_all(folder);
    made.map_err(|source| CliError::Writing { argument, path: folder.into(), source })?;
    save(argument, &format!("{}/{name}", folder.trim_end_matches('/')), content)
}

/// Saves files in the folder that `argument` names. A new folder gets its name only when all files are complete; in one that is there
/// each of them replaces the file of its name.
///
/// # Errors
/// `Writing`.
pub fn save_folder(argument: &'static str, folder: &str, files: &[(&str, String)]) -> Result<(), CliError> {
    let path = Path::new(folder);
    if calls::current().is_some() || path.exists() {
        return files.iter().try_for_each(|(name, content)| save_in(argument, folder, name, content));
    }
    let written = new_folder(path, files);
    written.map_err(|source| CliError::Writing { argument, path: folder.into(), source })
}

fn new_folder(path: &Path, files: &[(&str, String)]) -> io::Result<()> {
    let parent = folder(path);
    fs::create_dir_all(&parent)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".trainwright-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let unfinished = || UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let made = {
        let mut unfinished = unfinished();
        let made = builder.tempdir_in(&parent)?;
        unfinished.insert(made.path().to_path_buf());
        made
    };
    let written = files.iter().try_for_each(|(name, content)| {
        let mut file = fs::File::create(made.path().join(name))?;
        file.write_all(content.as_bytes())?;
        file.sync_all()
    });
    let mut unfinished = unfinished();
    unfinished.remove(made.path());
    written?;
    fs::rename(made.path(), path)
}

/// The one table that is written to `path`.
///
/// # Errors
/// If several tables were given.
pub fn only<T>(argument: &str, path: &str, mut tables: impl Iterator<Item = T>) -> Result<T, CliError> {
    match (tables.next(), tables.next()) {
        (Some(table), None) => Ok(table),
        _ => {
            let allowed = "with several tables there are several forecasts: give one table";
            Err(refuse(argument, path, allowed))
        }
    }
}

/// Writes to the memory of a call's caller, if the content is complete.
fn keep(
    call: &calls::Call,
    path: &str,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    content(&mut bytes)?;
    let mut written = call.written();
    match path {
        "-" => written.printed.append(&mut bytes),
        path => {
            written.files.insert(path.into(), bytes);
        }
    }
    Ok(())
}

fn finish(argument: &'static str, path: &str, result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(error) if path == "-" && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(CliError::Writing { argument, path: path.into(), source }),
        Ok(()) => Ok(()),
    }
}

fn write_file(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let existing = fs::metadata(path).ok();
    if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if existing.as_ref().is_some_and(|file| !file.is_file()) {
        let mut device = OpenOptions::new().write(true).open(path)?;
        return content(&mut device);
    }
    // A link stays a link: its target is replaced.
    let target = if existing.is_some() { fs::canonicalize(path)? } else { path.to_path_buf() };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".trainwright-");
    builder.permissions(existing.map_or_else(default_permissions, |file| file.permissions()));
    let unfinished = || UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut file, name) = {
        let mut unfinished = unfinished();
        let file = builder.tempfile_in(folder(&target))?;
        let name = file.path().to_path_buf();
        unfinished.insert(name.clone());
        (file, name)
    };
    let written = content(&mut file).and_then(|()| file.as_file().sync_all());
    let mut unfinished = unfinished();
    unfinished.remove(&name);
    written?;
    file.persist(&target).map_err(|error| error.error)?;
    Ok(())
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.into(),
        _ => PathBuf::from("."),
    }
}

/// The permissions of a new file, less the process's mask.
#[cfg(unix)]
fn default_permissions() -> Permissions {
    use std::os::unix::fs::PermissionsExt;
    Permissions::from_mode(0o666)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_content_until_the_new_one_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        let name = path.to_str().unwrap();
        write("--out", name, |out| out.write_all(b"old")).unwrap();
        let failed = write("--out", name, |out| {
            out.write_all(b"half of the ne")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.unwrap_err().to_string().ends_with("plan.toml: no storage space"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write("--out", name, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_new_folder_has_all_its_files_or_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/plans");
        let name = path.to_str().unwrap();
        let file = |name: &'static str, text: &str| (name, String::from(text));
        let failed = save_folder("--out", name, &[file("one", "1"), file("no/folder", "2")]);
        assert!(failed.is_err() && !path.exists());
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 0, "no temporary folder is left");
        save_folder("--out", name, &[file("one", "1"), file("two", "2")]).unwrap();
        save_folder("--out", name, &[file("two", "3")]).unwrap();
        assert_eq!([fs::read(path.join("one")).unwrap(), fs::read(path.join("two")).unwrap()], [b"1", b"3"]);
    }
}
