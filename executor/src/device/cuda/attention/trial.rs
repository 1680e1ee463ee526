//! The first attention of each shape that a library does is held against our kernel's, on the numbers of the run.
//!
//! A plan for a shape says that the library has a kernel, not that it is right on this GPU with this driver. So its first results,
//! forward and backward, are compared with ours on the host. A library whose results are wrong, or that fails, is not asked for that
//! shape again: our kernel does it, and the run's end says why. This happens in a run's first step, which no graph records; the host
//! reads, so that a step with a shape that is new is not recorded either.

use super::super::super::{DeviceSlice, Numbers};
use super::super::{Address, Cuda, bytes};
use super::Asked;
use std::ops::Range;
use trainwright_kernels::cuda::DeviceError;
use trainwright_kernels::cuda::attention::{self, Pass};
use trainwright_kernels::cuda::dropout::Drops;

/// What a pass writes.
pub(super) struct Written<'a> {
    pub buffers: Vec<DeviceSlice>,
    /// The attention that writes into buffers at these addresses.
    pub into: &'a dyn Fn(&[Address]) -> attention::Attention,
    /// What is compared of them.
    pub arrays: Vec<Array>,
}

impl Written<'_> {
    /// The attention that writes into its buffers.
    pub fn attention(&self) -> attention::Attention {
        self.into(&self.buffers)
    }

    fn into(&self, buffers: &[DeviceSlice]) -> attention::Attention {
        (self.into)(&buffers.iter().map(|buffer| buffer.at).collect::<Vec<_>>())
    }
}

/// Some columns of a buffer.
pub(super) struct Array {
    name: &'static str,
    /// Which of the buffers.
    buffer: usize,
    /// Numbers of a row.
    row: usize,
    columns: Range<usize>,
    tolerance: f64,
}

/// How far results in bf16 may be apart, ‖library's − ours‖ / ‖ours‖: either may be half of that off the exact ones, which is the
/// tolerance of the check of the kernels.
const OUTPUTS: f64 = 2e-2;
/// Tolerance for sums in f32 over products of bf16 numbers.
const LOGARITHMS: f64 = 1e-3;

impl Array {
    /// Results in the plan's numbers.
    pub fn outputs(name: &'static str, buffer: usize, row: usize, columns: Range<usize>) -> Self {
        Self { name, buffer, row, columns, tolerance: OUTPUTS }
    }

    /// All of a buffer in f32.
    pub fn logarithms(buffer: usize) -> Self {
        Self { name: "logarithms", buffer, row: 1, columns: 0..1, tolerance: LOGARITHMS }
    }

    /// ‖found − expected‖ / ‖expected‖ of whole buffers; NaN if either holds one.
    fn difference(&self, found: &[f32], expected: &[f32]) -> f64 {
        let rows = found.chunks(self.row).zip(expected.chunks(self.row));
        let (mut apart, mut norm) = (0.0, 0.0);
        for (found, expected) in rows {
            for (found, expected) in found[self.columns.clone()].iter().zip(&expected[self.columns.clone()]) {
                apart += (f64::from(*found) - f64::from(*expected)).powi(2);
                norm += f64::from(*expected).powi(2);
            }
        }
        if apart == 0.0 { 0.0 } else { (apart / norm).sqrt() }
    }
}

/// An attention that the library was asked for.
pub(super) struct Tried {
    /// Without addresses.
    shape: attention::Attention,
    pass: Pass,
    /// Whether the library does it.
    does: bool,
}

/// All that decides how it is done.
fn shape_of(operands: &attention::Attention) -> attention::Attention {
    let null = Address::NULL;
    attention::Attention {
        q: null,
        k: null,
        v: null,
        o: null,
        logarithms: null,
        o_gradient: null,
        dots: null,
        q_gradient: null,
        k_gradient: null,
        v_gradient: null,
        // Where probabilities begin in the sequence and which step it is decide nothing.
        drops: Drops { threshold: operands.drops.threshold, ..Drops::default() },
        ..*operands
    }
}

impl Cuda {
    /// Lets a library do it, if it is asked and can; whether it did. If not, anything is in the buffers.
    pub(super) fn fused(&self, pass: Pass, written: &Written) -> bool {
        if self.attending.borrow().asked != Asked::Yes {
            return false;
        }
        let operands = written.attention();
        let shape = shape_of(&operands);
        let is_it = |tried: &Tried| tried.pass == pass && tried.shape == shape;
        let known = self.attending.borrow().tried.iter().position(is_it);
        let done = match known.map(|known| self.attending.borrow().tried[known].does) {
            Some(false) => return false,
            Some(true) => self.by_library(&operands, pass),
            None => self.by_library(&operands, pass).and_then(|()| self.compare(pass, written)),
        };
        let attending = &mut *self.attending.borrow_mut();
        let does = done.is_ok();
        match known {
            Some(known) => attending.tried[known].does = does,
            None => attending.tried.push(Tried { shape, pass, does }),
        }
        match done {
            Ok(()) => {
                attending.fused[usize::from(pass.is_backward())] = true;
                attending.any_order |= pass == Pass::Backward;
            }
            Err(reason) => drop(attending.refused[usize::from(pass.is_backward())].get_or_insert(reason)),
        }
        does
    }

    /// Lets the library do it, or says why it does not.
    fn by_library(&self, operands: &attention::Attention, pass: Pass) -> Result<(), String> {
        let bytes = self.memory.borrow_mut().device.fuses(operands, pass)?;
        let workspace = self.try_far(bytes).map_err(|error| error.to_string())?;
        let memory = &mut *self.memory.borrow_mut();
        match memory.fault {
            // Whatever went wrong before ends the run.
            Some(_) => Ok(()),
            None => memory.device.attend(operands, pass, workspace.at()).map_err(|error| error.to_string()),
        }
    }

    /// Does the same by our kernels into other buffers, and says what differs by more than it may.
    fn compare(&self, pass: Pass, written: &Written) -> Result<(), String> {
        let like = |buffer: &DeviceSlice| {
            let made = self.try_far(buffer.bytes())?;
            Ok((DeviceSlice { at: made.at(), ..*buffer }, made))
        };
        let ours: Result<Vec<_>, DeviceError> = written.buffers.iter().map(like).collect();
        let (ours, _held): (Vec<DeviceSlice>, Vec<Scratch>) =
            ours.map_err(|error| format!("there is no memory to check it in: {error}"))?.into_iter().unzip();
        self.attention_by_our_kernels(&written.into(&ours), pass);
        for array in &written.arrays {
            let of = |buffers: &[DeviceSlice]| self.on_host_now(buffers[array.buffer]);
            let difference = array.difference(&of(&written.buffers), &of(&ours));
            // A fault before or meanwhile ends the run, and says nothing of the library.
            let is_fine = difference <= array.tolerance || self.memory.borrow().fault.is_some();
            if !is_fine {
                let attention::Attention { heads, head_dim, queries, .. } = written.attention();
                let (library, pass) =
                    (self.memory.borrow().device.fuser(), format!("{pass:?}").to_lowercase());
                return Err(format!(
                    "{library} differs in {pass} from our kernel ({heads} heads of {head_dim}, {queries} positions): {} by {:.1} %, \
                     and {} % is granted",
                    array.name,
                    100.0 * difference,
                    100.0 * array.tolerance
                ));
            }
        }
        Ok(())
    }

    fn on_host_now(&self, from: DeviceSlice) -> Vec<f32> {
        let read = |to: &mut [u8]| self.run(|memory| memory.device.read(from.at, to));
        bytes::numbers(from.length, from.number, read)
    }

    /// Memory for a while, or none.
    fn try_far(&self, bytes: usize) -> Result<Scratch, DeviceError> {
        let length = bytes.max(1).div_ceil(size_of::<f32>());
        let at = self.memory.borrow_mut().try_allocate(length * size_of::<f32>())?;
        Ok(Scratch(at, Numbers::on_device(DeviceSlice { at, length, number: super::Number::F32 })))
    }
}

/// Memory that is given back with this.
struct Scratch(Address, #[expect(dead_code, reason = "it is held for its end")] Numbers);

impl Scratch {
    fn at(&self) -> Address {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::open::emulator;
    use super::super::Attending;
    use super::*;
    use crate::device::AttentionBy;
    use crate::device::{AttentionGradient, AttentionOps, AttentionOutput, CurrentDevice, Device};
    use std::rc::Rc;
    use trainwright_kernels::attention::ScoreRules;
    use trainwright_kernels::attention::{Attention, Mask};
    use trainwright_kernels::cuda::{AttentionFault, AttentionFaultKind, Number};

    const LAYER: Attention =
        Attention { batch: 2, heads: 4, kv_heads: 2, head_dim: 16, value_head_dim: 16, mask: Mask::Causal };
    const POSITIONS: usize = 12;

    /// Outputs, logarithms and gradients, of the first time and of the second one.
    type Twice = [[Vec<f32>; 3]; 2];

    /// These, what is said of the library, and whether it does either pass.
    type Ran = (Twice, String, Vec<(Pass, bool)>);

    /// Numbers around 0 that repeat late.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| (((at + seed) * 7919 % 1013) as f32 / 506.0 - 1.0) * 1.5).collect()
    }

    /// What an attention leaves; `between` is called before the second time.
    fn twice(device: &Rc<Cuda>, between: impl FnOnce()) -> Twice {
        let tokens = POSITIONS * LAYER.batch;
        let take = |row, seed| device.take(numbers(tokens * row, seed), Number::Bf16);
        let (qkv, gradient) = (take(LAYER.row(), 1), take(LAYER.output_row(), 500));
        let once = || {
            let [heads, left] = device.attention(&LAYER, ScoreRules::default(), qkv.slice());
            let output =
                AttentionOutput { heads: heads.slice(), left: left.slice(), gradient: gradient.slice() };
            let to_qkv = device.attention_gradient(
                &LAYER,
                ScoreRules::default(),
                AttentionGradient { qkv: qkv.slice(), output },
            );
            [&heads, &left, &to_qkv].map(|numbers| device.read(numbers.slice()).into_owned())
        };
        let first = once();
        between();
        [first, once()]
    }

    /// `twice` with a library that has a fault from the beginning, or after the first time; `None` without a C++ compiler.
    fn run(by: AttentionBy, faults: [Option<(Pass, AttentionFaultKind)>; 2]) -> Option<Ran> {
        let mut emulator = match emulator() {
            Ok(emulator) => emulator,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let fault = AttentionFault::default();
        emulator.set_attention_fault(AttentionFault::clone(&fault));
        let device =
            Rc::new(Cuda::new(Box::new(emulator), Number::Bf16, Attending::new(by, Number::Bf16, false)));
        let _here = CurrentDevice::set(Rc::clone(&device) as Rc<dyn Device>);
        *fault.lock().unwrap() = faults[0];
        let made = twice(&device, || *fault.lock().unwrap() = faults[1]);
        assert_eq!(device.check(), Ok(()));
        let tried = device.attending.borrow().tried.iter().map(|tried| (tried.pass, tried.does)).collect();
        Some((made, device.attention_by().unwrap(), tried))
    }

    #[test]
    fn who_is_right_does_it_and_who_is_wrong_or_fails_does_not() {
        use AttentionFaultKind::{Fails, WrongNumbers};
        let Some((ours, _, none)) = run(AttentionBy::Ours, [None; 2]) else { return };
        assert!(none.is_empty());
        let (theirs, said, tried) = run(AttentionBy::Cudnn, [None; 2]).unwrap();
        assert_eq!(said, "cuDNN, emulated");
        assert_eq!(tried, [(Pass::Forward, true), (Pass::Backward, true)]);
        assert_ne!(theirs[0], ours[0], "other kernels round otherwise");
        assert_eq!(theirs[0], theirs[1]);

        // Wrong from the beginning: our numbers are there, the first time too.
        let wrong = |pass| Some((pass, WrongNumbers));
        let (made, said, tried) = run(AttentionBy::Cudnn, [wrong(Pass::Forward), None]).unwrap();
        assert_eq!([&made[0][0], &made[0][1]], [&ours[0][0], &ours[0][1]]);
        assert_eq!([&made[1][0], &made[1][1]], [&ours[0][0], &ours[0][1]]);
        assert_eq!(tried, [(Pass::Forward, false), (Pass::Backward, true)]);
        let expected = "cuDNN, emulated; own forward, because cuDNN, emulated differs in forward from our kernel (4 heads of 16, 12 positions): outputs by ";
        assert!(said.starts_with(expected) && said.ends_with(" %, and 2 % is granted"), "{said}");
        let (made, said, _) = run(AttentionBy::Cudnn, [wrong(Pass::Backward), None]).unwrap();
        assert_eq!(made[0][..2], theirs[0][..2]);
        assert!(said.contains("own backward, because") && said.contains("gradients of queries by"), "{said}");

        // It fails at once, and when it has been right before.
        let fails = |pass| Some((pass, Fails));
        let (made, said, tried) = run(AttentionBy::Cudnn, [fails(Pass::Forward); 2]).unwrap();
        assert_eq!(made[0][0], ours[0][0]);
        assert!(said.contains("own forward, because cudnnBackendExecute: it fails"), "{said}");
        assert_eq!(tried[0], (Pass::Forward, false));
        let (made, said, tried) = run(AttentionBy::Cudnn, [None, fails(Pass::Backward)]).unwrap();
        assert_eq!(made[0], theirs[0]);
        assert_eq!(made[1][..2], theirs[0][..2]);
        assert_ne!(made[1][2], theirs[0][2]);
        assert!(said.contains("own in some of backward, because cudnnBackendExecute"), "{said}");
        assert_eq!(tried, [(Pass::Forward, true), (Pass::Backward, false)]);
        // What is wrong later is not looked for.
        let (made, said, _) = run(AttentionBy::Cudnn, [None, wrong(Pass::Forward)]).unwrap();
        assert_ne!(made[1][0], theirs[0][0]);
        assert_eq!(said, "cuDNN, emulated");
    }

    #[test]
    fn columns_are_compared_by_themselves() {
        let array = |columns| Array::outputs("some", 0, 3, columns);
        let [found, expected] = [[1.0, 2.0, 9.0, 1.0, 2.0, 9.0], [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]];
        assert_eq!(array(0..2).difference(&found, &expected), 0.0);
        // √(2 · 6²) / √(2 · 3²)
        assert_eq!(array(2..3).difference(&found, &expected), 2.0);
        assert!(array(0..1).difference(&[f32::NAN, 0.0, 0.0], &expected[..3]).is_nan());
        assert_eq!(array(0..3).difference(&[0.0; 6], &[0.0; 6]), 0.0);
        assert_eq!(array(0..3).difference(&[1.0; 6], &[0.0; 6]), f64::INFINITY);
    }
}
