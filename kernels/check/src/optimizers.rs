//! Steps of all optimizers over tensors of several sizes.

use crate::bench::{Array, Bench};
use trainwright_kernels::cuda::Launch;
use trainwright_kernels::cuda::optimizer::{CHUNK, Chunk, Method, Optimizer, StepScalars, TrustRatios};
use trainwright_kernels::cuda::{Address, DeviceError, Number};

/// A tensor and what an optimizer keeps of it, in f64 and on the device.
struct Tensor {
    decay: f64,
    weight: Array,
    gradient: Array,
    first: Array,
    second: Array,
    copy: Array,
}

const RATE: f64 = 0.01;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.95;
const EPSILON: f64 = 1e-6;
const FACTOR: f64 = 0.5;
const TRUST: f64 = 0.02;
/// Number of the step.
const STEP: u32 = 3;

pub(crate) fn optimizers(bench: &mut Bench) -> Result<(), DeviceError> {
    use Method::{Adam, AdamW, Lamb, Lars, Momentum};
    // The first moment may be missing: SGD has none.
    for (method, has_first) in
        [(AdamW, true), (Adam, true), (Momentum, true), (Momentum, false), (Lamb, true), (Lars, true)]
    {
        let mut tensors = Vec::new();
        // Less than a pack; full packs; more than a chunk, with a rest.
        for (count, decay) in [(3, 0.0), (256, 0.1), (CHUNK + 1001, 0.1)] {
            let positive: Vec<f64> = (0..count).map(|_| 0.1 * (1.1 + bench.next())).collect();
            tensors.push(Tensor {
                decay,
                weight: bench.random(Number::F32, count)?,
                gradient: bench.random(Number::F32, count)?,
                first: if has_first {
                    bench.random(Number::F32, count)?
                } else {
                    Array { at: Address::NULL, number: Number::F32, values: vec![0.0; count] }
                },
                second: bench.array(Number::F32, &positive)?,
                copy: bench.blank(Number::Bf16, count)?,
            });
        }
        let launches = launches(bench, method, &tensors)?;
        for launch in &launches {
            bench.run(launch)?;
        }
        let last = &launches[launches.len() - 1].kernel;
        for tensor in &tensors {
            let [weight, first, second] = expected(method, tensor);
            let case = format!("{method:?} of {}", weight.len());
            bench.compare(last, &format!("{case} weight"), &tensor.weight, &weight)?;
            bench.compare(last, &format!("{case} copy"), &tensor.copy, &weight)?;
            if has_first {
                bench.compare(&launches[0].kernel, &format!("{case} first moment"), &tensor.first, &first)?;
            }
            bench.compare(&launches[0].kernel, &format!("{case} second moment"), &tensor.second, &second)?;
        }
    }
    Ok(())
}

fn launches(bench: &mut Bench, method: Method, tensors: &[Tensor]) -> Result<Vec<Launch>, DeviceError> {
    let (mut chunks, mut starts) = (Vec::new(), vec![0u32]);
    for (index, tensor) in tensors.iter().enumerate() {
        let chunk = Chunk {
            weight: tensor.weight.at,
            gradient: tensor.gradient.at,
            first: tensor.first.at,
            second: if matches!(method, Method::AdamW | Method::Adam | Method::Lamb) {
                tensor.second.at
            } else {
                Address::NULL
            },
            copy: tensor.copy.at,
            tensor: index as i32,
            decay: tensor.decay as f32,
            ..Chunk::default()
        };
        chunks.extend(chunk.cut(tensor.weight.values.len()));
        starts.push(chunks.len() as u32);
    }
    let bytes: Vec<u8> = chunks.iter().flat_map(Chunk::bytes).collect();
    let decays: Vec<f64> = tensors.iter().map(|tensor| tensor.decay).collect();
    let step = Optimizer {
        chunks: bench.device.upload(&bytes)?,
        factor: bench.array(Number::F32, &[FACTOR, f64::NAN])?.at,
        scalars: bench
            .device
            .upload(&StepScalars::of(RATE as f32, [BETA1 as f32, BETA2 as f32], STEP).bytes())?,
        partial: bench.words(&vec![u32::MAX; 4 * chunks.len()])?,
        ratios: bench.blank(Number::F32, tensors.len())?.at,
        beta1: BETA1 as f32,
        beta2: BETA2 as f32,
        epsilon: EPSILON as f32,
        trust: TRUST as f32,
        coupled: 0,
    };
    let ratios = TrustRatios {
        partial: step.partial,
        starts: bench.words(&starts)?,
        decays: bench.array(Number::F32, &decays)?.at,
        ratios: step.ratios,
        tensors: tensors.len() as i32,
        lars: 0,
        trust: TRUST as f32,
    };
    Ok(step.launches(method, chunks.len(), &ratios))
}

/// Weight, first and second moment after the step.
fn expected(method: Method, tensor: &Tensor) -> [Vec<f64>; 3] {
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (w, m, v) = (&tensor.weight.values, &tensor.first.values, &tensor.second.values);
    let mut g: Vec<f64> = tensor.gradient.values.iter().map(|g| g * FACTOR).collect();
    let mut decay = tensor.decay;
    if method == Method::Adam {
        g.iter_mut().zip(w).for_each(|(g, w)| *g += decay * w);
        decay = 0.0;
    }
    let each = |f: &dyn Fn(usize) -> f64| (0..w.len()).map(f).collect::<Vec<f64>>();
    match method {
        Method::AdamW | Method::Adam | Method::Lamb => {
            let first = each(&|i| BETA1 * m[i] + (1.0 - BETA1) * g[i]);
            let second = each(&|i| BETA2 * v[i] + (1.0 - BETA2) * g[i] * g[i]);
            let adam = |i: usize| {
                first[i]
                    / (1.0 - BETA1.powi(STEP as i32))
                    / ((second[i] / (1.0 - BETA2.powi(STEP as i32))).sqrt() + EPSILON)
            };
            let direction = each(&|i| adam(i) + decay * w[i]);
            let ratio = if method == Method::Lamb { norm(w) / norm(&direction) } else { 1.0 };
            [each(&|i| w[i] - RATE * ratio * direction[i]), first, second]
        }
        Method::Momentum => {
            let first = each(&|i| BETA1 * m[i] + g[i] + decay * w[i]);
            [each(&|i| w[i] - RATE * first[i]), first, v.clone()]
        }
        Method::Lars => {
            let ratio = TRUST * norm(w) / (norm(&g) + decay * norm(w));
            let first = each(&|i| BETA1 * m[i] + RATE * ratio * (g[i] + decay * w[i]));
            [each(&|i| w[i] - first[i]), first, v.clone()]
        }
    }
}
