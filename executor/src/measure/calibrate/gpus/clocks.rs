//! The clocks of a GPU while it multiplies, as `nvidia-smi` reports them.

use super::kernels::{Shapes, large_product};
use crate::device::GpuName;
use std::process::Command;
use trainwright_kernels::cuda::DeviceError;
use trainwright_kernels::cuda::measure::Bench;

/// Seconds of products that are under way meanwhile: the tool takes most of one to begin.
const SECONDS: f64 = 1.5;

/// `, at 1980 MHz, memory 2619 MHz, 312.07 W, 45 C`, or nothing if there is no such tool.
///
/// # Errors
/// Of the device.
pub(super) fn under_load(
    bench: &mut Bench,
    shapes: &Shapes,
    name: Option<GpuName>,
) -> Result<String, DeviceError> {
    let Some(name) = name else { return Ok(String::new()) };
    let (product, at) = large_product(bench, shapes)?;
    let once = bench.time(|device| device.multiply(product, at))?.seconds;
    for _ in 0..(SECONDS / once).ceil() as usize {
        bench.device.multiply(product, at)?;
    }
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu", "--format=csv,noheader"])
        .arg(format!("--id={}", written(name)))
        .output();
    bench.device.clear()?;
    let output = output.ok().filter(|output| output.status.success());
    Ok(output.and_then(|output| said(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default())
}

/// A line of the tool in words.
fn said(line: &str) -> Option<String> {
    match line.trim().split(", ").collect::<Vec<_>>()[..] {
        [clock, memory, power, celsius] => {
            Some(format!(", at {clock}, memory {memory}, {power}, {celsius} C"))
        }
        _ => None,
    }
}

/// As the tool writes a GPU's name: `GPU-8f2f6a2c-…`.
fn written(name: GpuName) -> String {
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tool_says_is_told() {
        assert_eq!(
            said("1980 MHz, 2619 MHz, 312.07 W, 45\n").as_deref(),
            Some(", at 1980 MHz, memory 2619 MHz, 312.07 W, 45 C")
        );
        assert_eq!(said("No devices were found"), None);
        assert_eq!(written([0xab; 16]), "GPU-abababab-abab-abab-abab-abababababab");
    }
}
