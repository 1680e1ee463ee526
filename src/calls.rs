//! The call of the library that a thread works for: what it reads, where its answer goes, and who waits for it.
//!
//! A program has one standard output and one person before it; a library is called from several threads at once. Each call
//! has threads of its own, and all of them find the call here. A thread of the program works for none: `None`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who waits for an answer. Called from several threads at once.
pub trait Watch: Send + Sync {
    /// `done` parts of `total` are done; `what` says of what.
    fn progress(&self, what: &str, done: usize, total: usize);

    /// Whether nobody waits any more.
    fn is_stopped(&self) -> bool;
}

/// A call of the library.
pub struct Call {
    /// Files in memory, by the names that the arguments give them; `-` is standard input.
    inputs: BTreeMap<String, Vec<u8>>,
    /// Written files that are kept in memory.
    kept: BTreeSet<String>,
    watch: Arc<dyn Watch>,
    written: Mutex<Written>,
}

/// What a call has written.
#[derive(Debug, Default)]
pub struct Written {
    /// What the program would print on standard output.
    pub printed: Vec<u8>,
    /// Lines that the program would print on standard error.
    pub remarks: Vec<String>,
    /// The kept files.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Call {
    /// A call that has not begun.
    pub fn new(
        inputs: BTreeMap<String, Vec<u8>>,
        kept: impl IntoIterator<Item = String>,
        watch: Arc<dyn Watch>,
    ) -> Call {
        Call { inputs, kept: kept.into_iter().collect(), watch, written: Mutex::default() }
    }

    /// A file that is in memory.
    pub fn input(&self, name: &str) -> Option<&[u8]> {
        self.inputs.get(name).map(Vec::as_slice)
    }

    /// Whether a written file stays in memory.
    pub fn keeps(&self, name: &str) -> bool {
        self.kept.contains(name)
    }

    /// What was written so far.
    pub fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who waits.
    pub fn watch(&self) -> &dyn Watch {
        &*self.watch
    }
}

thread_local! {
    static CALL: RefCell<Option<Arc<Call>>> = const { RefCell::new(None) };
}

/// Lets this thread work for a call until it ends.
pub fn work_for(call: Arc<Call>) {
    CALL.with(|current| *current.borrow_mut() = Some(call));
}

/// The call that this thread works for; `None` if it is a program's.
pub fn current() -> Option<Arc<Call>> {
    CALL.with(|current| current.borrow().clone())
}
