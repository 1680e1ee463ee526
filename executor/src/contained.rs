//! Panics of a library that cannot be trusted with every file: they become errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error. A program's panic hook then has nothing to say.
pub fn is_contained() -> bool {
    IS_CONTAINED.get()
}

/// What `work` gives, or what it says as it panics. Nothing that it has changed may be used after that.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    IS_CONTAINED.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(false);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        format!("its reader has failed: {}", text.replace('\n', " "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_later_ones_do_not() {
        assert_eq!(contained(|| 1), Ok(1));
        let failed = contained(|| -> usize { panic!("at {}", 7) });
        assert_eq!(failed, Err("its reader has failed: at 7".into()));
        assert!(!is_contained());
    }
}
