//! How long something takes on a GPU, and what that says of its rates.

use std::fmt;
use trainwright_kernels::cuda::driver::{Gpu, Stream};
use trainwright_kernels::cuda::{Address, Device, DeviceError, Launch, Number};

/// A measurement.
#[derive(Debug, Clone)]
pub struct Row {
    /// What ran.
    pub kernel: String,
    /// Its sizes.
    pub shape: String,
    /// Median seconds of a run.
    pub seconds: f64,
    /// The middle half of the samples lies within this share of the median.
    pub spread: f64,
    /// Operations of a run.
    pub flops: f64,
    /// Bytes that must move in a run.
    pub bytes: f64,
}

impl Row {
    /// Columns of a line.
    pub const HEADER: &'static str = "kernel,shape,seconds,spread,flops,bytes";

    /// For a file.
    pub fn line(&self) -> String {
        let Self { kernel, shape, seconds, spread, flops, bytes } = self;
        format!("{kernel},\"{shape}\",{seconds:e},{spread:.4},{flops:e},{bytes:e}")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = match self.flops > 0.0 {
            true => format!("{:.1} TFLOP/s", self.flops / self.seconds / 1e12),
            false if self.bytes > 0.0 => format!("{:.0} GB/s", self.bytes / self.seconds / 1e9),
            false => String::new(),
        };
        write!(f, "{:44} {:34} {:10.2} {rate:>12}", self.kernel, self.shape, self.seconds * 1e6)
    }
}

/// What a run does, for its rates.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amount {
    /// Operations.
    pub flops: f64,
    /// Bytes.
    pub bytes: f64,
}

/// A GPU and random numbers for it.
pub struct Bench<'a> {
    /// The GPU.
    pub gpu: &'a mut Gpu,
    state: u64,
}

/// Samples of which the median is taken.
const SAMPLES: usize = 15;
/// Seconds of a sample: some hundred times what an event resolves.
const SAMPLE: f64 = 2e-3;

impl<'a> Bench<'a> {
    /// With that GPU.
    pub fn new(gpu: &'a mut Gpu) -> Self {
        Self { gpu, state: 1 }
    }

    /// Random numbers between −1 and 1: zeros would draw less power and run faster than real data.
    pub fn random(&mut self, number: Number, count: usize) -> Result<Address, DeviceError> {
        let mut next = || {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            (self.state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let bytes: Vec<u8> = match number {
            Number::F32 => (0..count).flat_map(|_| next().to_le_bytes()).collect(),
            Number::Bf16 => {
                (0..count).flat_map(|_| ((next().to_bits() >> 16) as u16).to_le_bytes()).collect()
            }
        };
        self.gpu.upload(&bytes)
    }

    /// Random whole numbers below `end`.
    pub fn indices(&mut self, count: usize, end: u32) -> Result<Address, DeviceError> {
        let mut next = || {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            ((self.state >> 33) % u64::from(end)) as u32
        };
        let bytes: Vec<u8> = (0..count).flat_map(|_| next().to_le_bytes()).collect();
        self.gpu.upload(&bytes)
    }

    /// Measures what `work` puts on a stream.
    pub fn time(
        &mut self,
        [kernel, shape]: [&str; 2],
        amount: Amount,
        mut work: impl FnMut(&mut Gpu, &Stream) -> Result<(), DeviceError>,
    ) -> Result<Row, DeviceError> {
        let stream = self.gpu.stream()?;
        let mut sample = |gpu: &mut Gpu, runs: usize| -> Result<f64, DeviceError> {
            let before = gpu.event(&stream)?;
            for _ in 0..runs {
                work(gpu, &stream)?;
            }
            let after = gpu.event(&stream)?;
            Ok(f64::from(after.milliseconds_since(&before)?) / 1e3 / runs as f64)
        };
        sample(self.gpu, 3)?;
        let once = sample(self.gpu, 3)?;
        let runs = ((SAMPLE / once).ceil() as usize).clamp(1, 1000);
        let mut samples = (0..SAMPLES).map(|_| sample(self.gpu, runs)).collect::<Result<Vec<f64>, _>>()?;
        samples.sort_by(f64::total_cmp);
        let seconds = samples[SAMPLES / 2];
        let spread = (samples[3 * SAMPLES / 4] - samples[SAMPLES / 4]) / seconds;
        let Amount { flops, bytes } = amount;
        Ok(Row { kernel: kernel.into(), shape: shape.into(), seconds, spread, flops, bytes })
    }

    /// Measures launches, one after the other.
    pub fn time_launches(
        &mut self,
        launches: &[Launch],
        shape: &str,
        amount: Amount,
    ) -> Result<Row, DeviceError> {
        let names: Vec<&str> = launches.iter().map(|launch| launch.kernel.as_str()).collect();
        // The last one is what distinguishes versions that begin alike.
        let name = names.last().copied().unwrap_or_default();
        self.time([name, shape], amount, |gpu, stream| {
            launches.iter().try_for_each(|launch| gpu.launch_on(launch, stream))
        })
    }
}
