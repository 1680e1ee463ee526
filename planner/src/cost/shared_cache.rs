//! Values that several threads look up by key, each computed when it is first asked for.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Values by key.
pub(crate) struct SharedCache<K, V>(Mutex<BTreeMap<K, V>>);

impl<K, V> Default for SharedCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, V: Clone> SharedCache<K, V> {
    /// The value of a key, or what `compute` returns, which must follow from the key: two threads may both compute it.
    pub fn get_or(&self, key: K, compute: impl FnOnce() -> V) -> V {
        let values = || self.0.lock().expect("no holder of the lock panics");
        if let Some(value) = values().get(&key) {
            return value.clone();
        }
        let value = compute();
        values().insert(key, value.clone());
        value
    }
}
