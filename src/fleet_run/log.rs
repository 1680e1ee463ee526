//! The log of a fleet in its folder: what earlier calls did, kept true where the file of jobs has changed.

use crate::error::CliError;
use crate::{inputs, output};
use std::path::Path;

/// The log's name.
pub const LOG: &str = "log.csv";

/// A job that has another last step than in earlier calls.
pub struct Changed {
    /// Its name.
    pub job: String,
    /// The last step before.
    pub before: usize,
    /// And now.
    pub now: usize,
}

/// The log of earlier calls, without a line that was not written to its end; empty if there is none. What jobs have done is said
/// in parts of their steps of now: one that had ended and has more steps now has stopped.
///
/// # Errors
/// A log that cannot be read, or written.
pub fn log(folder: &str, changed: &[Changed]) -> Result<String, CliError> {
    let path = Path::new(folder).join(LOG);
    if !path.exists() {
        return Ok(String::new());
    }
    let path = path.display().to_string();
    let text = inputs::text(Some("--out"), &path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let log = changed.iter().fold(whole.to_string(), |log, changed| rescaled(&log, changed));
    if log != text {
        output::save("--out", &path, &log)?;
    }
    Ok(log)
}

fn rescaled(log: &str, Changed { job, before, now }: &Changed) -> String {
    let part = |done: f64| (done * *before as f64 / *now as f64).min(1.0);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(log.as_bytes());
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    // A line that is none is left to who reads the log.
    for mut row in reader.records().flatten() {
        let of_job = row.get(2) == Some(job);
        let with =
            |event: &str, value: &str| csv::StringRecord::from(vec![&row[0], event, job.as_str(), value]);
        let mut rows = Vec::new();
        match (row.get(1), row.get(3).and_then(|value| value.parse::<f64>().ok())) {
            (Some("progress"), Some(done)) if of_job => {
                rows.push(with("progress", &format!("{:.6}", part(done))));
            }
            (Some("end"), _) if of_job && now > before => {
                rows.extend([with("progress", &format!("{:.6}", part(1.0))), with("stop", "")]);
            }
            _ => rows.push(std::mem::take(&mut row)),
        }
        for row in rows {
            writer.write_record(&row).expect("a row can be written to memory");
        }
    }
    String::from_utf8(writer.into_inner().expect("memory can be written to")).expect("it was text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_said_in_parts_of_the_steps_of_now() {
        let log = "time_s,event,name,value\n0.0,start,\"a, b\",1@0\n1.0,progress,\"a, b\",0.500000\n2.0,progress,c,0.500000\n3.0,end,\"a, b\",\n";
        let changed = |now| Changed { job: "a, b".into(), before: 100, now };
        let more = log.replace("\"a, b\",0.500000", "\"a, b\",0.250000");
        let more =
            more.replace("3.0,end,\"a, b\",\n", "3.0,progress,\"a, b\",0.500000\n3.0,stop,\"a, b\",\n");
        assert_eq!(rescaled(log, &changed(200)), more);
        let fewer = log.replace("\"a, b\",0.500000", "\"a, b\",1.000000");
        assert_eq!(rescaled(log, &changed(40)), fewer);
    }
}
