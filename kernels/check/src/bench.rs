//! A device with random inputs and the list of comparisons.

use trainwright_kernels::cuda::{Address, Device, DeviceError, Launch, Multiprocessors, Number};

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The kernel.
    pub kernel: String,
    /// The output and the shape.
    pub case: String,
    /// ‖out − expected‖ / ‖expected‖.
    pub error: f64,
    /// The largest error that passes.
    pub tolerance: f64,
}

impl Finding {
    /// Whether the error is within the tolerance; NaN is not.
    pub fn is_right(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// An array on the device with its values.
pub(crate) struct Array {
    pub at: Address,
    pub number: Number,
    pub values: Vec<f64>,
}

/// A device, a random generator for its inputs, and the comparisons so far.
pub(crate) struct Bench<'a> {
    pub device: &'a mut dyn Device,
    pub gpu: Multiprocessors,
    state: u64,
    pub findings: Vec<Finding>,
}

/// The largest error that rounding to a number type leaves: f32 sums of some hundred products, or half a unit in the last place of
/// bf16's 8 bits.
pub(crate) fn tolerance(number: Number) -> f64 {
    match number {
        Number::F32 => 1e-5,
        Number::Bf16 => 4e-3,
    }
}

fn encoded(number: Number, values: &[f64]) -> Vec<u8> {
    number.encode(values.iter().map(|x| *x as f32))
}

fn decoded(number: Number, bytes: &[u8]) -> Vec<f64> {
    number.decode(bytes).into_iter().map(f64::from).collect()
}

/// The values rounded to a number type.
pub(crate) fn rounded(number: Number, values: &[f64]) -> Vec<f64> {
    decoded(number, &encoded(number, values))
}

impl<'a> Bench<'a> {
    pub fn new(device: &'a mut dyn Device, seed: u64) -> Self {
        let gpu = device.multiprocessors();
        Self { device, gpu, state: seed, findings: Vec::new() }
    }

    /// Between −1 and 1 (a linear congruential generator: Knuth's MMIX).
    pub fn next(&mut self) -> f64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Random numbers between −1 and 1.
    pub fn random(&mut self, number: Number, count: usize) -> Result<Array, DeviceError> {
        let values: Vec<f64> = (0..count).map(|_| self.next()).collect();
        self.array(number, &values)
    }

    /// Random integers below `end`.
    pub fn indices(&mut self, count: usize, end: u32) -> Vec<u32> {
        (0..count).map(|_| ((self.next() + 1.0) / 2.0 * f64::from(end)) as u32).collect()
    }

    /// An array of those values, rounded.
    pub fn array(&mut self, number: Number, values: &[f64]) -> Result<Array, DeviceError> {
        let bytes = encoded(number, values);
        Ok(Array { at: self.device.upload(&bytes)?, number, values: decoded(number, &bytes) })
    }

    /// An array of NaN.
    pub fn blank(&mut self, number: Number, count: usize) -> Result<Array, DeviceError> {
        self.array(number, &vec![f64::NAN; count])
    }

    /// A copy of an array's present content.
    pub fn copy(&mut self, array: &Array) -> Result<Array, DeviceError> {
        let values = self.read(array)?;
        self.array(array.number, &values)
    }

    pub fn words(&mut self, words: &[u32]) -> Result<Address, DeviceError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.device.upload(&bytes)
    }

    pub fn read(&mut self, array: &Array) -> Result<Vec<f64>, DeviceError> {
        let bytes = self.device.download(array.at, array.values.len() * array.number.size())?;
        Ok(decoded(array.number, &bytes))
    }

    pub fn read_words(&mut self, from: Address, count: usize) -> Result<Vec<u32>, DeviceError> {
        let bytes = self.device.download(from, count * 4)?;
        Ok(bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect())
    }

    pub fn run(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.device.launch(launch)
    }

    /// Compares `array` with the expected values.
    pub fn compare(
        &mut self,
        kernel: &str,
        case: &str,
        array: &Array,
        expected: &[f64],
    ) -> Result<(), DeviceError> {
        self.compare_within(kernel, case, array, expected, tolerance(array.number))
    }

    pub fn compare_within(
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

    /// Compares integers, which must be equal.
    pub fn compare_words(
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
