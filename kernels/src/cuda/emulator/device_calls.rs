//! The calls of `Device` on an emulator.

use super::memory::{Buffer, FENCE, Line, Memory, buffer_mut, bytes_of, inside, inside_mut, memory};
use super::order::{Clock, History};
use super::{AttentionFaultKind, Emulator, Turns, fused, group};
use crate::cuda::attention::{Attention, Pass};
use crate::cuda::collective::{Collective, GroupName, Membership};
use crate::cuda::device::{About, Device, Event, Graph, StopFlag};
use crate::cuda::error::DeviceError;
use crate::cuda::fp8::{Fp8Operands, Fp8Product};
use crate::cuda::fused::AttentionShape;
use crate::cuda::launch::{Address, Launch, Number};
use crate::cuda::product::{Epilogue, Operands, Product};
use crate::cuda::recorded::Recorded;
use crate::cuda::recorder::enqueue;
use crate::fp8::Fp8;
use std::time::Instant;

/// Bytes of memory that an emulated GPU reports. Buffers are the host's memory, without a limit.
const REPORTED_MEMORY: usize = 1 << 30;
/// Multiprocessors that an emulated GPU reports: few, so that grid-stride loops run more than once on small work too.
const REPORTED_MULTIPROCESSORS: usize = 3;

impl Device for Emulator {
    fn select(&mut self, stream: usize) -> Result<(), DeviceError> {
        self.order.select(stream);
        Ok(())
    }

    fn record_event(&mut self) -> Result<Event, DeviceError> {
        Ok(Event::new(self.order.record()))
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        group::check_received(event.of());
        self.order.wait(event.of::<Clock>());
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        // All ones is NaN as f32 and as bf16, so unwritten bytes show, inside the buffer and in its fences.
        let lines = vec![Line([0xff; 256]); bytes.div_ceil(256) + 2 * FENCE / 256].into_boxed_slice();
        let at = lines.as_ptr() as u64 + FENCE as u64;
        memory().insert(at, Buffer { lines, bytes, history: History::default() });
        self.buffers.insert(at);
        Ok(Address(at))
    }

    /// All its memory is the host's.
    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.allocate(bytes)
    }

    fn wait_on_host(&mut self, event: &Event) -> Result<(), DeviceError> {
        group::check_received(event.of());
        self.order.wait_on_host(event.of::<Clock>());
        Ok(())
    }

    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        let (from, buffer) = buffer_mut(memory, at);
        let first = (at.0 - from) as usize;
        if let Err((device, stream)) = buffer.history.check_host(first..first + bytes, self.order.host()) {
            panic!(
                "the host looks at what stream {stream} of device {device} copies, and does not wait for it"
            );
        }
        work(inside_mut(memory, at, bytes));
        Ok(())
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "a copy from the host", &[(to, bytes.len(), true)]);
        inside_mut(memory, to, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "a copy to the host", &[(from, bytes.len(), false)]);
        self.order.finish();
        group::check_received(self.order.host());
        bytes.copy_from_slice(inside(memory, from, bytes.len()));
        Ok(())
    }

    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "a copy", &[(from, bytes, false), (to, bytes, true)]);
        let copied = inside(memory, from, bytes).to_vec();
        inside_mut(memory, to, bytes).copy_from_slice(&copied);
        Ok(())
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "zeroing", &[(at, bytes, true)]);
        inside_mut(memory, at, bytes).fill(0);
        Ok(())
    }

    /// # Panics
    /// If a kernel writes outside of buffers, or its results depend on the order of threads.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.ran.insert(launch.kernel.clone());
        if self.turns == Turns::InOrder {
            self.run_recording_accesses(memory, launch)?;
            self.check_fences(memory, launch);
            return Ok(());
        }
        let copy = |memory: &Memory| -> Vec<Box<[Line]>> {
            self.buffers.iter().map(|at| memory[at].lines.clone()).collect()
        };
        let before = copy(memory);
        let mut first = None;
        for order in [0, 1, 77] {
            for (at, before) in self.buffers.iter().zip(&before) {
                memory.get_mut(at).expect("it is one of them").lines.copy_from_slice(before);
            }
            self.run_once(launch, order)?;
            self.check_fences(memory, launch);
            let after = copy(memory);
            let first = first.get_or_insert_with(|| after.clone());
            // Atomic sums have no fixed order; their kernels' names say so.
            let is_equal = first.iter().zip(&after).all(|(first, after)| bytes_of(first) == bytes_of(after));
            let kernel = &launch.kernel;
            assert!(is_equal || kernel.contains("atomic"), "{kernel} depends on the order of threads");
        }
        Ok(())
    }

    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError> {
        let Product { rows, columns, inner, inputs, output, accumulate, epilogue, .. } = product;
        if !matches!(epilogue, Epilogue::None | Epilogue::Bias) {
            return Err(DeviceError::NoAlgorithm(format!("{product:?}")));
        }
        let (left, right, before, bias) = {
            let memory = &mut *memory();
            let bias = if epilogue == Epilogue::Bias { columns } else { 0 };
            let of = |at, count: usize, number: Number, writes| (at, count * number.size(), writes);
            let touched = [
                of(at.left, rows * inner, inputs, false),
                of(at.right, inner * columns, inputs, false),
                of(at.bias, bias, product.bias_number(), false),
                of(at.out, rows * columns, output, true),
            ];
            self.touch(memory, "a product", &touched);
            let before = if accumulate { rows * columns } else { 0 };
            (
                self.numbers(memory, at.left, rows * inner, inputs),
                self.numbers(memory, at.right, inner * columns, inputs),
                if before > 0 { self.numbers(memory, at.out, before, output) } else { Vec::new() },
                if bias > 0 {
                    self.numbers(memory, at.bias, bias, product.bias_number())
                } else {
                    Vec::new()
                },
            )
        };
        let mut out = Vec::with_capacity(rows * columns);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let term = |step: usize| {
                let left = left[if product.left_transposed { step * rows + row } else { row * inner + step }];
                let right = right
                    [if product.right_transposed { column * inner + step } else { step * columns + column }];
                f64::from(left) * f64::from(right)
            };
            let sum = (0..inner).map(term).sum::<f64>() as f32;
            let sum = sum + before.get(row * columns + column).copied().unwrap_or(0.0);
            out.push(sum + bias.get(column).copied().unwrap_or(0.0));
        }
        let out = output.encode(out);
        inside_mut(&mut memory(), at.out, out.len()).copy_from_slice(&out);
        Ok(())
    }

    fn supports_fp8(&self) -> bool {
        true
    }

    fn multiply_fp8(&mut self, product: Fp8Product, at: Fp8Operands) -> Result<(), DeviceError> {
        let Fp8Product { rows, columns, inner, output, accumulate, bias, .. } = product;
        let is_known = [rows, columns, inner].iter().all(|size| size % 16 == 0)
            && [product.left, product.right].contains(&Fp8::E4m3)
            && (!bias || output == Number::Bf16);
        if !is_known {
            return Err(DeviceError::NoAlgorithm(format!("{product:?}")));
        }
        let memory = &mut *memory();
        let size = rows * columns * output.size();
        let (left_size, right_size) = (rows * inner, columns * inner);
        let biases = if bias { columns } else { 0 };
        let touched = [
            (at.left, left_size, false),
            (at.left_scale, 4, false),
            (at.right, right_size, false),
            (at.right_scale, 4, false),
            (at.bias, biases * output.size(), false),
            (at.out, size, true),
        ];
        self.touch(memory, "a product", &touched);
        let codes = |at, count, of: Fp8| -> Vec<f64> {
            inside(memory, at, count).iter().map(|code| f64::from(of.decode(*code))).collect()
        };
        let (left, right) =
            (codes(at.left, left_size, product.left), codes(at.right, right_size, product.right));
        let scale = |at| f64::from(self.numbers(memory, at, 1, Number::F32)[0]);
        let scale = scale(at.left_scale) * scale(at.right_scale);
        let before = self.numbers(memory, at.out, rows * columns, output);
        let bias = if bias { self.numbers(memory, at.bias, columns, output) } else { vec![0.0; columns] };
        let mut out = Vec::with_capacity(rows * columns);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let pairs = left[row * inner..][..inner].iter().zip(&right[column * inner..][..inner]);
            let sum = (scale * pairs.map(|(left, right)| left * right).sum::<f64>()) as f32;
            out.push(sum + bias[column] + if accumulate { before[row * columns + column] } else { 0.0 });
        }
        inside_mut(memory, at.out, size).copy_from_slice(&output.encode(out));
        Ok(())
    }

    /// As cuDNN needs: the sums of dQ, or bf16 for each score if the order of sums is fixed.
    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        let shape = AttentionShape::of(attention, pass)?;
        let scores = shape.batch * shape.heads * shape.queries * shape.keys;
        let of_scores = if pass == Pass::DeterministicBackward { 2 * scores as usize } else { 0 };
        Ok(shape.graph_workspace() + of_scores)
    }

    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError> {
        let bytes = self.fuses(attention, pass).map_err(DeviceError::NoAlgorithm)?;
        let graph = AttentionShape::of(attention, pass).map_err(DeviceError::NoAlgorithm)?.graph();
        let memory = &mut *memory();
        let mut touched = fused::touched(&graph, attention, workspace);
        touched.push((workspace, bytes, true));
        self.touch(memory, "attention", &touched);
        let scale = match self.attention_fault_in(pass) {
            None => attention.scale,
            Some(AttentionFaultKind::WrongNumbers) => 2.0 * attention.scale,
            Some(AttentionFaultKind::Fails) => {
                let (call, message) = ("cudnnBackendExecute".into(), "it fails as a test wants it".into());
                return Err(DeviceError::Call { call, message });
            }
        };
        fused::run(&graph, &Attention { scale, ..*attention }, workspace, memory);
        Ok(())
    }

    fn fuser(&self) -> String {
        "cuDNN, emulated".into()
    }

    fn stop_when(&mut self, flag: StopFlag) {
        self.stop = flag;
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.order.finish_all();
        group::check_received(self.order.host());
        Ok(())
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        self.marks.push(Instant::now());
        Ok(())
    }

    fn marks(&mut self) -> Result<Vec<f64>, DeviceError> {
        let marks = std::mem::take(&mut self.marks);
        let Some(first) = marks.first() else { return Ok(Vec::new()) };
        Ok(marks.iter().map(|mark| (*mark - *first).as_secs_f64()).collect())
    }

    fn about(&self) -> About {
        About {
            name: "emulated GPU".into(),
            summary: "an emulated GPU".into(),
            versions: "no driver".into(),
            capability: (9, 0),
            multiprocessors: REPORTED_MULTIPROCESSORS,
            memory: REPORTED_MEMORY,
        }
    }

    fn new_group(&mut self) -> Result<GroupName, DeviceError> {
        Ok(group::new_name())
    }

    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError> {
        group::enter(&membership, &self.stop)?;
        self.groups.insert(group, (membership, 0));
        Ok(())
    }

    /// Sums in the order of the members.
    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError> {
        let (membership, done) = self.groups.get_mut(&group).expect("its groups were entered");
        let (membership, done) = (*membership, std::mem::replace(done, *done + 1));
        let Membership { place, size, .. } = membership;
        // `summed`: the range of the sums that this member gets; `None` if nothing is summed.
        let (from, brings, to, summed) = match work {
            Collective::AllReduce { x, count } => (x, count, x, Some(0..count)),
            Collective::ReduceScatter { from, to, count } => {
                (from, size * count, to, Some(place * count..(place + 1) * count))
            }
            Collective::AllGather { from, to, count } => (from, count, to, None),
            Collective::Send { x, count } => {
                let contribution = self.brought(x, count, number, "a message that is sent");
                let (by, known) = self.order.work();
                return group::send(&membership, done, (contribution, known.clone()), by);
            }
            Collective::Receive { x, count } => {
                let (numbers, sent) = group::receive(&membership, done, &self.stop)?;
                assert_eq!(numbers.len(), count, "a message is as long as its receiver expects");
                self.order.wait(&sent);
                self.put(x, &numbers, number, "a message that is received");
                return Ok(());
            }
        };
        let contribution = self.brought(from, brings, number, "a collective");
        let all = group::exchange(&membership, done, (contribution, self.order.record()), &self.stop)?;
        all.iter().for_each(|brought| self.order.wait(&brought.1));
        let made: Vec<f32> = match summed {
            Some(range) => range.map(|at| all.iter().map(|brought| brought.0[at]).sum::<f32>()).collect(),
            None => all.iter().flat_map(|brought| brought.0.iter().copied()).collect(),
        };
        self.put(to, &made, number, "a collective");
        Ok(())
    }

    fn capture(&mut self, recorded: &[Recorded]) -> Result<Graph, DeviceError> {
        Ok(Graph::new(recorded.to_vec()))
    }

    /// Enqueues the recorded calls again.
    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError> {
        enqueue(self, graph.of::<Vec<Recorded>>())
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        self.order.finish_all();
        let mut memory = memory();
        std::mem::take(&mut self.buffers).iter().for_each(|at| drop(memory.remove(at)));
        Ok(())
    }
}
