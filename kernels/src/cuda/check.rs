//! Every version of every kernel against plain loops in f64, on fresh random inputs.
//!
//! The measure is ‖out − expected‖ / ‖expected‖. Outputs hold NaN before a launch, so what is not written fails. The inputs
//! of the expected value are what the kernel sees: rounded to its numbers.

mod attention;
mod eight;
mod experts;
mod grouped;
mod losses;
mod optimizers;
mod rows;
mod tails;

use super::emulator::bf16_bits;
use super::launch::{Address, Device, DeviceError, Launch, Multiprocessors, Number};

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The kernel.
    pub kernel: String,
    /// Which output, for which shape.
    pub case: String,
    /// ‖out − expected‖ / ‖expected‖.
    pub error: f64,
    /// The largest that is right.
    pub tolerance: f64,
}

impl Finding {
    /// Whether it is right; NaN is not.
    pub fn is_right(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// A group of kernels and what checks them.
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
    Check { name: "norm", run: rows::norm },
    Check { name: "norm of some columns", run: rows::norm_part },
    Check { name: "rotary", run: rows::rotary },
    Check { name: "activation", run: rows::activation },
    Check { name: "residual", run: rows::residual },
    Check { name: "columns", run: rows::columns },
    Check { name: "dropout", run: rows::drop_out },
    Check { name: "sums", run: losses::sums },
    Check { name: "norm of gradients", run: losses::squares },
    Check { name: "casts", run: losses::casts },
    Check { name: "numbers of 8 bits", run: eight::narrow },
    Check { name: "products of 8 bits", run: eight::product },
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
    /// Runs it with inputs of that seed.
    pub fn run(&self, device: &mut dyn Device, seed: u64) -> Result<Vec<Finding>, DeviceError> {
        let gpu = Multiprocessors::of(device);
        let mut bench = Bench { device, gpu, state: seed, findings: Vec::new() };
        (self.run)(&mut bench)?;
        bench.device.clear()?;
        Ok(bench.findings)
    }
}

/// Numbers on the device, and what they are.
struct Array {
    at: Address,
    number: Number,
    values: Vec<f64>,
}

/// A device with random inputs for it, and what was found.
struct Bench<'a> {
    device: &'a mut dyn Device,
    gpu: Multiprocessors,
    state: u64,
    findings: Vec<Finding>,
}

fn from_bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

impl Number {
    fn bytes(self, values: &[f64]) -> Vec<u8> {
        match self {
            Number::F32 => values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
            Number::Bf16 => values.iter().flat_map(|x| bf16_bits(*x as f32).to_le_bytes()).collect(),
        }
    }

    fn values(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Number::F32 => {
                bytes.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))).collect()
            }
            Number::Bf16 => {
                bytes.as_chunks().0.iter().map(|two| from_bf16(u16::from_le_bytes(*two))).collect()
            }
        }
    }

    /// What rounding an output to this leaves: f32 sums of some hundred products, or half a unit of bf16's 8 bits.
    fn tolerance(self) -> f64 {
        match self {
            Number::F32 => 1e-5,
            Number::Bf16 => 4e-3,
        }
    }
}

impl Bench<'_> {
    /// Between −1 and 1 (a linear congruential generator: Knuth's MMIX).
    fn next(&mut self) -> f64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Random numbers between −1 and 1.
    fn random(&mut self, number: Number, count: usize) -> Result<Array, DeviceError> {
        let values: Vec<f64> = (0..count).map(|_| self.next()).collect();
        self.array(number, &values)
    }

    /// Random whole numbers below `end`.
    fn indices(&mut self, count: usize, end: u32) -> Vec<u32> {
        (0..count).map(|_| ((self.next() + 1.0) / 2.0 * f64::from(end)) as u32).collect()
    }

    /// Those numbers, rounded.
    fn array(&mut self, number: Number, values: &[f64]) -> Result<Array, DeviceError> {
        let bytes = number.bytes(values);
        Ok(Array { at: self.device.upload(&bytes)?, number, values: number.values(&bytes) })
    }

    /// NaN.
    fn blank(&mut self, number: Number, count: usize) -> Result<Array, DeviceError> {
        self.array(number, &vec![f64::NAN; count])
    }

    /// Another one with what is in it now.
    fn copy(&mut self, array: &Array) -> Result<Array, DeviceError> {
        let values = self.read(array)?;
        self.array(array.number, &values)
    }

    fn words(&mut self, words: &[u32]) -> Result<Address, DeviceError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.device.upload(&bytes)
    }

    fn read(&mut self, array: &Array) -> Result<Vec<f64>, DeviceError> {
        let bytes = self.device.download(array.at, array.values.len() * array.number.size())?;
        Ok(array.number.values(&bytes))
    }

    fn read_words(&mut self, from: Address, count: usize) -> Result<Vec<u32>, DeviceError> {
        let bytes = self.device.download(from, count * 4)?;
        Ok(bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect())
    }

    fn run(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.device.launch(launch)
    }

    /// Notes how far `array` is from what is expected of it.
    fn compare(
        &mut self,
        kernel: &str,
        case: &str,
        array: &Array,
        expected: &[f64],
    ) -> Result<(), DeviceError> {
        self.compare_within(kernel, case, array, expected, array.number.tolerance())
    }

    fn compare_within(
        &mut self,
        kernel: &str,
        case: &str,
        array: &Array,
        expected: &[f64],
        tolerance: f64,
    ) -> Result<(), DeviceError> {
        let found = self.read(array)?;
        assert_eq!(found.len(), expected.len(), "{kernel} {case}");
        let pairs = found.iter().zip(expected);
        let distance: f64 = pairs.map(|(found, expected)| (found - expected).powi(2)).sum();
        let size: f64 = expected.iter().map(|expected| expected.powi(2)).sum();
        let error = if size == 0.0 { distance.sqrt() } else { (distance / size).sqrt() };
        self.findings.push(Finding { kernel: kernel.into(), case: case.into(), error, tolerance });
        Ok(())
    }

    /// The same for whole numbers, which must be equal.
    fn compare_words(
        &mut self,
        kernel: &str,
        case: &str,
        from: Address,
        expected: &[u32],
    ) -> Result<(), DeviceError> {
        let found = self.read_words(from, expected.len())?;
        let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
        let error = wrong as f64;
        self.findings.push(Finding { kernel: kernel.into(), case: case.into(), error, tolerance: 0.0 });
        Ok(())
    }
}
