//! Every version of every CUDA kernel against plain loops in f64, on new random inputs.
//!
//! The error is ‖out − expected‖ / ‖expected‖. Outputs hold NaN before a launch, so an element that no thread writes fails.
//! Expected values are computed from inputs as the kernel sees them: rounded to its number type.
//!
//! `CHECKS` runs on any `Device`: in tests on the emulator, by the example `gpu-check` on a GPU.

mod attention;
mod bench;
mod experts;
mod fp8;
mod grouped;
mod losses;
mod norms;
mod optimizers;
mod rows;
mod tails;

use bench::Bench;
use trainwright_kernels::cuda::{Device, DeviceError};

pub use bench::Finding;

/// A group of kernels with the function that checks them.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Name of the group.
    pub name: &'static str,
    run: fn(&mut Bench) -> Result<(), DeviceError>,
}

/// All checks.
pub const CHECKS: [Check; 23] = [
    Check { name: "look-up", run: rows::look_up },
    Check { name: "table gradient", run: rows::table_gradient },
    Check { name: "norm", run: norms::norm },
    Check { name: "norm of some columns", run: norms::norm_part },
    Check { name: "rotary", run: rows::rotary },
    Check { name: "activation", run: rows::activation },
    Check { name: "residual", run: rows::residual },
    Check { name: "columns", run: rows::columns },
    Check { name: "dropout", run: rows::drop_out },
    Check { name: "sums", run: losses::sums },
    Check { name: "norm of gradients", run: losses::squares },
    Check { name: "casts", run: losses::casts },
    Check { name: "fp8 casts", run: fp8::narrow },
    Check { name: "fp8 products", run: fp8::product },
    Check { name: "cross entropy", run: losses::cross_entropy },
    Check { name: "behind products", run: tails::tails },
    Check { name: "optimizers", run: optimizers::optimizers },
    Check { name: "routing", run: experts::routing },
    Check { name: "permutation", run: experts::permutation },
    Check { name: "products of experts", run: grouped::products },
    Check { name: "attention", run: attention::narrow },
    Check { name: "attention over other keys", run: attention::join },
    Check { name: "attention on tensor cores", run: attention::tiles },
];

impl Check {
    /// Runs it with random inputs of that seed.
    ///
    /// # Errors
    /// Those of the device.
    pub fn run(&self, device: &mut dyn Device, seed: u64) -> Result<Vec<Finding>, DeviceError> {
        let mut bench = Bench::new(device, seed);
        (self.run)(&mut bench)?;
        bench.device.clear()?;
        Ok(bench.findings)
    }
}
