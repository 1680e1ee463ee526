//! The commands as functions of Python, without any of Python's dress: `python/package` has that.
//!
//! Python's lock is not held while a command works. The thread that asks waits for the answer, and looks for signals and
//! progress in between.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trainwright::{Answer, Failure, Request, Watch};

/// How often signals and progress are looked for.
const LOOK: Duration = Duration::from_millis(50);

pyo3::create_exception!(
    trainwright,
    InputError,
    PyValueError,
    "An option or a file cannot be read or makes no sense."
);
pyo3::create_exception!(
    trainwright,
    Failed,
    PyRuntimeError,
    "A file could not be written, or the program is wrong."
);

/// What is done, of how much, and of what.
type Progress = (String, usize, usize);

/// What the asking thread waits for.
#[derive(Default)]
struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    progress: Option<Progress>,
    answer: Option<Result<Answer, Failure>>,
}

impl Waiting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, or after a while the latest progress, if there is any.
    fn wait(&self) -> State {
        let waited = self.changed.wait_timeout_while(self.state(), LOOK, |state| state.answer.is_none());
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Watch for Waiting {
    fn progress(&self, what: &str, done: usize, total: usize) {
        self.state().progress = Some((what.into(), done, total));
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Runs a command in a thread of its own and waits for it.
fn wait_for(py: Python<'_>, request: Request, progress: Option<&Bound<'_, PyAny>>) -> PyResult<Answer> {
    let waiting = Arc::new(Waiting::default());
    let asked = waiting.clone();
    std::thread::spawn(move || {
        let answer = trainwright::answer(request, asked.clone());
        asked.state().answer = Some(answer);
        asked.changed.notify_one();
    });
    let stop = |error: PyErr| {
        waiting.stopped.store(true, Ordering::Relaxed);
        error
    };
    loop {
        let State { progress: latest, answer } = py.detach(|| waiting.wait());
        py.check_signals().map_err(stop)?;
        if let (Some(progress), Some((what, done, total))) = (progress, latest) {
            progress.call1((what, done, total)).map_err(stop)?;
        }
        match answer {
            None => {}
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(Failure::BadInput(line))) => return Err(InputError::new_err(line)),
            Some(Err(Failure::Failed(_, line))) => return Err(Failed::new_err(line)),
            Some(Err(Failure::Stopped)) => return Err(Failed::new_err("stopped")),
        }
    }
}

/// Answers of a command: exit code, what it prints, what it remarks, and its kept files.
type Asked = (u8, String, Vec<String>, BTreeMap<String, Py<PyBytes>>);

/// The functions.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::{Failed, InputError};

    /// The answer of a command to options, an object of JSON.
    #[pyfunction]
    #[pyo3(signature = (command, options, inputs, kept, threads=None, progress=None))]
    fn ask(
        py: Python<'_>,
        command: String,
        options: &str,
        inputs: BTreeMap<String, Vec<u8>>,
        kept: Vec<String>,
        threads: Option<usize>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Asked> {
        let options =
            serde_json::from_str(options).map_err(|error| InputError::new_err(error.to_string()))?;
        let request = Request { command, options, inputs, kept, threads };
        let Answer { code, printed, remarks, files } = wait_for(py, request, progress)?;
        let files = files.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes).unbind()));
        Ok((code, printed, remarks, files.collect()))
    }

    /// The commands.
    #[pyfunction]
    fn commands() -> Vec<String> {
        trainwright::commands()
    }

    /// The options of a command, as JSON.
    #[pyfunction]
    fn options(command: &str) -> PyResult<String> {
        trainwright::options(command).map(|options| options.to_string()).map_err(InputError::new_err)
    }

    /// A table of JSON as TOML.
    #[pyfunction]
    fn toml_of(table: &str) -> PyResult<String> {
        let table: Value =
            serde_json::from_str(table).map_err(|error| InputError::new_err(error.to_string()))?;
        trainwright::toml_of(&table).map_err(InputError::new_err)
    }
}
