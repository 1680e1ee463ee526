//! A command's answer without a program around it, for callers of this library.
//!
//! A request names a command and its options by the names that the command line gives them. There is one reading of
//! questions: a request becomes the arguments of the program, and the answer is what the program prints with them.

mod keywords;

pub use keywords::{commands, options, typed};

use crate::arguments::Arguments;
use crate::calls::{self, Call, Watch};
use crate::commands as table;
use crate::error::Outcome;
use crate::progress::Stopped;
use clap::Parser;
use rayon::ThreadPoolBuilder;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes of the stack of a call's threads, as much as a program's first thread has.
const STACK: usize = 8 << 20;

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The command: `plan`, `what-if`.
    pub command: String,
    /// Its options by name, with `_` or `-` between words. A flag is true or false, an option that may be repeated a list,
    /// an option of pairs an object; null is an option that is not given.
    pub options: Map<String, Value>,
    /// Files in memory, by the names that options give them.
    pub inputs: BTreeMap<String, Vec<u8>>,
    /// Written files that stay in memory.
    pub kept: Vec<String>,
    /// Threads of the call; `None`: one for each core. Answers do not depend on it.
    pub threads: Option<usize>,
}

/// A command's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 0, or 3 if nothing fits.
    pub code: u8,
    /// What the program prints on standard output: JSON, if the command has it.
    pub printed: String,
    /// What the program remarks on standard error.
    pub remarks: Vec<String>,
    /// The kept files.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// An option or a file cannot be read or makes no sense.
    BadInput(String),
    /// Everything else, with the program's exit code.
    Failed(u8, String),
    /// Nobody waited for it any more.
    Stopped,
}

/// Runs a command with threads of its own. Nothing is printed, and nothing ends the process.
///
/// # Errors
/// `Failure`.
pub fn answer(request: Request, watch: Arc<dyn Watch>) -> Result<Answer, Failure> {
    let arguments = keywords::arguments(&request.command, &request.options).map_err(Failure::BadInput)?;
    let parsed = Arguments::try_parse_from(&arguments);
    let parsed =
        parsed.map_err(|error| Failure::BadInput(crate::error::CliError::Usage(error).line()))?.command;
    let call = Arc::new(Call::new(request.inputs, request.kept, watch));
    let of_threads = call.clone();
    let pool = ThreadPoolBuilder::new()
        .num_threads(request.threads.unwrap_or(0))
        .stack_size(STACK)
        .start_handler(move |_| calls::work_for(of_threads.clone()))
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| pool.install(|| table::run(parsed))));
    if call.watch().is_stopped() {
        return Err(Failure::Stopped);
    }
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(reason) if reason.is::<Stopped>() => return Err(Failure::Stopped),
        Err(reason) => return Err(failed(format!("internal error: {}", message(&*reason)))),
    };
    let mut written = call.written();
    let printed = String::from_utf8_lossy(&written.printed).into_owned();
    let code = match outcome {
        Ok(outcome) => outcome as u8,
        // An answer that says so itself.
        Err(error) if error.outcome() == Outcome::NothingFits && !printed.is_empty() => {
            Outcome::NothingFits as u8
        }
        Err(error) if error.outcome() == Outcome::BadInput => return Err(Failure::BadInput(error.line())),
        Err(error) => return Err(Failure::Failed(error.outcome() as u8, error.line())),
    };
    let remarks = std::mem::take(&mut written.remarks);
    let files = std::mem::take(&mut written.files);
    Ok(Answer { code, printed, remarks, files })
}

/// A table of JSON, such as the `plan` of an answer, as the TOML that commands read. Null is left out.
///
/// # Errors
/// If the table has what TOML has not.
pub fn toml_of(table: &Value) -> Result<String, String> {
    let Value::Object(_) = table else { return Err(format!("a table is needed, not {table}")) };
    toml::to_string(&without_null(table)).map_err(|error| error.to_string())
}

fn without_null(value: &Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_null(value)))
            .collect(),
        Value::Array(values) => values.iter().map(without_null).collect(),
        other => other.clone(),
    }
}

fn failed(reason: String) -> Failure {
    Failure::Failed(Outcome::Failure as u8, reason)
}

/// What a panic says.
fn message(reason: &(dyn std::any::Any + Send)) -> &str {
    let text = reason.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| reason.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

#[cfg(test)]
mod tests;
