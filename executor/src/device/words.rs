//! Whole numbers of the host that a device reads: tokens.

use trainwright_kernels::cuda::Address;

/// Numbers that the host knows, and where a device with memory of its own has them too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    host: Vec<u32>,
    there: Option<Address>,
}

impl Words {
    /// Of the host alone.
    pub fn on_host(host: Vec<u32>) -> Self {
        Self { host, there: None }
    }

    /// There too.
    pub fn there(host: Vec<u32>, there: Address) -> Self {
        Self { host, there: Some(there) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// For the host.
    pub fn host(&self) -> &[u32] {
        &self.host
    }

    /// For the device.
    pub fn device(&self) -> Address {
        self.there.expect("a device's tokens are brought to it before a step")
    }
}
