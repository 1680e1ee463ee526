//! Reading a log, line by line.

use super::devices::Devices;
use super::infer::{Hints, infer, named};
use super::{LogError, LoggedSweep, LoggedTime};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Reads every table of a log; `origin` names it in messages.
///
/// # Errors
/// `LogError`, with the line where it is known.
pub fn read(text: &str, origin: &str) -> Result<Vec<LoggedSweep>, LogError> {
    let mut reader = Reader::default();
    for (line, text) in (1..).zip(text.lines()) {
        reader.line(text, origin, line)?;
    }
    reader.end_table(origin)?;
    match reader.sweeps.is_empty() {
        true => Err(LogError::NoTable { origin: origin.into() }),
        false => Ok(reader.sweeps),
    }
}

#[derive(Default)]
struct Reader {
    devices: Devices,
    program: Option<CollectiveKind>,
    library: Option<String>,
    tests: Option<String>,
    table: Option<Table>,
    sweeps: Vec<LoggedSweep>,
}

/// A table that is being read.
struct Table {
    columns: Columns,
    line: usize,
    rows: Vec<LoggedTime>,
    hints: Option<Hints>,
    date: Option<String>,
}

impl Reader {
    fn line(&mut self, text: &str, origin: &str, line: usize) -> Result<(), LogError> {
        self.note_versions(text);
        if let Some(columns) = Columns::of(text) {
            self.end_table(origin)?;
            self.table = Some(Table { columns, line, rows: Vec::new(), hints: None, date: None });
            return Ok(());
        }
        let comment = text.split_once('#').map(|(_, comment)| comment.trim());
        if comment.is_some_and(|comment| END.iter().any(|words| comment.starts_with(words))) {
            self.end_table(origin)?;
        }
        if let Some(table) = &mut self.table {
            return table.line(text, origin, line);
        }
        if !text.contains("concluded") {
            self.program = named(text).or(self.program);
        }
        match comment {
            Some("Using devices") => self.devices = Devices::default(),
            Some(comment) => self.devices.add(comment, origin, line)?,
            None => {}
        }
        Ok(())
    }

    fn note_versions(&mut self, text: &str) {
        let word_after = |mark: &str| {
            let rest = &text[text.find(mark)? + mark.len()..];
            rest.trim_start_matches([' ', ':']).split_whitespace().next()
        };
        let number = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_digit());
        if let Some(version) = word_after("RCCL version").filter(number) {
            self.library = Some(format!("RCCL {version}"));
        } else if let Some(version) = word_after("NCCL version").filter(number) {
            self.library = Some(format!("NCCL {version}"));
        } else if let Some(version) = word_after("rccl-tests: Version") {
            self.tests = Some(format!("rccl-tests {version}"));
        } else if let Some(version) = word_after("# nccl-tests version") {
            self.tests = Some(format!("nccl-tests {version}"));
            // Five digits since 2.9, as in 22807 for 2.28.7.
            if let Some(code) = word_after("nccl-library=").and_then(|code| code.parse::<u32>().ok()) {
                self.library = Some(format!("NCCL {}.{}.{}", code / 10_000, code / 100 % 100, code % 100));
            }
        }
    }

    fn end_table(&mut self, origin: &str) -> Result<(), LogError> {
        let Some(table) = self.table.take() else { return Ok(()) };
        if table.rows.is_empty() {
            return Err(LogError::NoRows { origin: origin.into(), line: table.line });
        }
        let group = self.devices.group(origin)?;
        let ranks = group.map(|group| group.nodes * group.ranks_per_node);
        let inferred = || table.hints.zip(ranks).and_then(|(hints, ranks)| infer(hints, ranks));
        let versions: Vec<&str> =
            [&self.library, &self.tests].into_iter().flatten().map(String::as_str).collect();
        self.sweeps.push(LoggedSweep {
            line: table.line,
            collective: self.program.take().or_else(inferred),
            group,
            gpu: self.devices.gpu(),
            software: (!versions.is_empty()).then(|| versions.join(", ")),
            date: table.date,
            rows: table.rows,
        });
        Ok(())
    }
}

/// Comments that end a table.
const END: [&str; 5] =
    ["Out of bounds values", "Avg bus bandwidth", "Collective test", "nThread", "nccl-tests version"];

/// The columns of a table, by their names.
struct Columns {
    /// The launcher's prefix, before the `#` of the names.
    prefix: String,
    names: Vec<String>,
    /// The first column of the second half, which is measured in place.
    in_place: Option<usize>,
    time: usize,
}

impl Columns {
    /// The columns of a line of column names; `None` for other lines.
    fn of(text: &str) -> Option<Columns> {
        let start = text.find("size")?;
        let names: Vec<String> = text[start..].split_whitespace().map(str::to_string).collect();
        let named = |wanted: &[&str]| {
            let found = names.iter().enumerate().filter(|(_, name)| wanted.contains(&name.as_str()));
            found.map(|(index, _)| index).collect::<Vec<_>>()
        };
        let times = named(&["time", "cputime"]);
        if names.get(1).is_none_or(|name| name != "count") || named(&["algbw"]).is_empty() {
            return None;
        }
        let (time, in_place) = (*times.first()?, times.get(1).copied());
        let prefix = text[..start].trim_end().trim_end_matches('#').into();
        Some(Columns { prefix, names, in_place, time })
    }

    /// Cells of a row: a timestamp has one name and two cells.
    fn cells(&self) -> usize {
        self.names.len() + usize::from(self.names.iter().any(|name| name == "timestamp"))
    }

    /// The cells of a row; `None` for other lines. A row starts with two integers, after the launcher's prefix. If the
    /// prefix differs from line to line, such as a time, the row is the last cells of the line.
    fn row<'a>(&self, text: &'a str) -> Option<Vec<&'a str>> {
        let counts = |cells: &[&str]| cells.iter().take(2).all(|cell| cell.parse::<u64>().is_ok());
        let rest = text.strip_prefix(self.prefix.as_str()).unwrap_or(text);
        let cells: Vec<&str> = rest.split_whitespace().collect();
        if cells.len() > 1 && counts(&cells) {
            return Some(cells);
        }
        let last = cells.len().checked_sub(self.cells())?;
        (last > 0 && counts(&cells[last..])).then(|| cells[last..].to_vec())
    }

    fn at(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|column| column == name)
    }
}

impl Table {
    fn line(&mut self, text: &str, origin: &str, line: usize) -> Result<(), LogError> {
        let Some(cells) = self.columns.row(text) else { return Ok(()) };
        let columns = &self.columns;
        let refuse = |expected: String| {
            Err(LogError::Row { origin: origin.into(), line, text: text.trim().into(), expected })
        };
        // Runs in place only leave the first half empty.
        let half = columns.in_place.map_or(0, |in_place| in_place - columns.time);
        let skipped = match columns.cells().checked_sub(cells.len()) {
            Some(0) => 0,
            Some(missing) if missing == half => half,
            _ => return refuse(format!("{} columns, not {}", columns.cells(), cells.len())),
        };
        // With repeated names a half may be longer than the row: missing cells are empty.
        let cell = |index: usize| {
            let at = if index < columns.time { index } else { index - skipped };
            cells.get(at).copied().unwrap_or_default()
        };
        if let Some(named) = columns.at("type").filter(|named| cell(*named).parse::<f64>().is_ok()) {
            return refuse(format!("the name of a type in column {}", named + 1));
        }
        let first = if skipped > 0 { columns.time + half } else { columns.time };
        for (index, name) in columns.names.iter().enumerate().skip(first) {
            let wrong = cell(index).parse().unwrap_or(0.0);
            if name == "#wrong" && wrong > 0.0 {
                return Err(LogError::Wrong { origin: origin.into(), line, wrong });
            }
        }
        let value = |index: usize| cell(index).parse::<f64>().ok().filter(|value| value.is_finite());
        let Some(time) = value(first).filter(|time| *time > 0.0) else {
            return refuse(format!("a time above 0 in column {}", first - skipped + 1));
        };
        let bytes: f64 = cell(0).parse().expect("a row starts with integers");
        if bytes == 0.0 {
            return Ok(());
        }
        let bandwidth = |name: &str| columns.at(name).and_then(|index| value(index + first - columns.time));
        if let (Some(algorithm_bandwidth), Some(bus_bandwidth)) = (bandwidth("algbw"), bandwidth("busbw"))
            && algorithm_bandwidth > self.hints.map_or(0.0, |hints| hints.algorithm_bandwidth)
        {
            let has_root = columns.at("root").map(|root| !cell(root).starts_with('-'));
            let adds = columns.at("redop").map(|redop| cell(redop) != "none");
            self.hints = Some(Hints { adds, has_root, algorithm_bandwidth, bus_bandwidth });
        }
        if columns.cells() > columns.names.len() {
            self.date = cells.get(cells.len() - 2).map(|date| date.to_string());
        }
        self.rows.push(LoggedTime { line, bytes: Bytes::new(bytes), time: Seconds::new(time * 1e-6) });
        Ok(())
    }
}
