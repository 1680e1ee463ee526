//! The calls of `Device` on a GPU.

use super::super::answer::{OrFailed, failed};
use super::super::communicator::{Communicator, Id};
use super::super::cudnn::Cudnn;
use super::super::events::PooledEvent;
use super::super::graph::Graph;
use super::super::handles::{Pinned, Priority, Stream};
use super::super::library::Library;
use super::super::product::Products;
use super::staging::Staging;
use super::{Description, FP8_SINCE, Gpu};
use crate::cuda::attention::{Attention, Pass};
use crate::cuda::collective::{Collective, GroupName, Membership};
use crate::cuda::device::{self, About, Device, Event, InUse, StopFlag};
use crate::cuda::error::DeviceError;
use crate::cuda::fp8::{Fp8Operands, Fp8Product};
use crate::cuda::launch::{Address, Launch, Number};
use crate::cuda::product::{Operands, Product};
use crate::cuda::recorded::Recorded;
use crate::cuda::recorder::enqueue;
use cudarc::driver::result;
use cudarc::driver::sys;

/// A plan of cuDNN may need this share of a GPU's memory as workspace: 1/8. Forecasts do not count it.
const WORKSPACE_SHARE: usize = 8;

impl Gpu {
    /// Calls `multiply` with the library's state and the selected stream.
    fn with_products(
        &mut self,
        multiply: impl FnOnce(&mut Products, &Stream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut products = match self.products.take() {
            Some(products) => products,
            None => Products::new(self)?,
        };
        let done = multiply(&mut products, self.selected());
        self.products = Some(products);
        done
    }

    /// Calls `copy` with the staging buffers.
    fn with_staging(
        &mut self,
        copy: impl FnOnce(&mut Staging, &Gpu) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut staging = match self.staging.take() {
            Some(staging) => staging,
            None => Staging::new(self)?,
        };
        let done = copy(&mut staging, self);
        self.staging = Some(staging);
        done
    }
}

impl Device for Gpu {
    fn select(&mut self, stream: usize) -> Result<(), DeviceError> {
        while self.streams.len() <= stream {
            // All streams but stream 0 are for messages, collectives and copies.
            self.streams.push(Stream::new(Priority::Communicates)?);
        }
        self.selected = stream;
        Ok(())
    }

    fn record_event(&mut self) -> Result<Event, DeviceError> {
        Ok(Event::new(self.events.record(self.selected())?))
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        event.of::<PooledEvent>().hold_back(self.selected())
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.arena.take(bytes.max(1), |size| {
            // SAFETY: what is not written is not read as a value of a type.
            let made = unsafe { result::malloc_sync(size) };
            made.map(Address).map_err(|error| failed(&format!("cuMemAlloc of {size} bytes"), error))
        })
    }

    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        let made = self.pinned(bytes)?;
        let at = Address(made.at as u64);
        self.pinned.push(made);
        Ok(at)
    }

    fn wait_on_host(&mut self, event: &Event) -> Result<(), DeviceError> {
        self.wait_until(|| event.of::<PooledEvent>().is_over())
    }

    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let has =
            |memory: &&mut Pinned| (memory.at as u64..memory.at as u64 + memory.bytes as u64).contains(&at.0);
        let memory =
            self.pinned.iter_mut().find(has).expect("the host sees memory that was allocated for it");
        let first = (at.0 - memory.at as u64) as usize;
        work(&mut memory.bytes()[first..first + bytes]);
        Ok(())
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.with_staging(|staging, gpu| staging.write(gpu, to, bytes))
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.with_staging(|staging, gpu| staging.read(gpu, from, bytes))
    }

    /// Unified addressing: the driver sees from an address whether it is the device's or pinned host memory.
    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's addresses have that many bytes, as for any kernel.
        unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes, self.selected().0) }
            .result()
            .or_failed("cuMemcpyAsync")
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's address has that many bytes.
        unsafe { result::memset_d8_async(at.0, 0, bytes, self.selected().0) }.or_failed("cuMemsetD8Async")
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.launch_raw(launch, self.selected().0)
    }

    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError> {
        self.with_products(|products, on| products.multiply(product, at, on))
    }

    fn supports_fp8(&self) -> bool {
        self.description.capability >= FP8_SINCE
    }

    fn multiply_fp8(&mut self, product: Fp8Product, at: Fp8Operands) -> Result<(), DeviceError> {
        self.with_products(|products, on| products.multiply_fp8(product, at, on))
    }

    /// Backward only on chips before Blackwell: cuDNN promises no order of sums there.
    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        let (major, _) = self.description.capability;
        if pass == Pass::Backward && !(8..10).contains(&major) {
            return Err(format!("cuDNN is not asked for backward on compute capability {major}"));
        }
        let most = self.description.memory / WORKSPACE_SHARE;
        let made = || Cudnn::new(most).map_err(|error| error.to_string());
        self.cudnn.get_or_insert_with(made).as_mut().map_err(|reason| reason.clone())?.plan(attention, pass)
    }

    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError> {
        let cudnn = self.cudnn.as_ref().and_then(|cudnn| cudnn.as_ref().ok());
        cudnn.expect("it was asked for a plan before").run(attention, pass, workspace, self.selected())
    }

    fn fuser(&self) -> String {
        self.cudnn.as_ref().and_then(|cudnn| cudnn.as_ref().ok()).map(Cudnn::name).unwrap_or_default()
    }

    fn stop_when(&mut self, flag: StopFlag) {
        self.stop = Some(flag);
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.streams.iter().try_for_each(|stream| self.finish_stream(stream))
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        let now = self.timed_events.record(self.selected())?;
        self.marks.push(now);
        Ok(())
    }

    fn marks(&mut self) -> Result<Vec<f64>, DeviceError> {
        let marks = std::mem::take(&mut self.marks);
        let Some(first) = marks.first() else { return Ok(Vec::new()) };
        marks.iter().try_for_each(|mark| self.wait_until(|| mark.is_over()))?;
        marks.iter().map(|mark| Ok(f64::from(mark.milliseconds_since(first)?) * 1e-3)).collect()
    }

    fn used(&self) -> Option<InUse> {
        let (free, total) = result::mem_get_info().ok()?;
        Some(InUse { reserved: self.arena.reserved(), on_gpu: total - free })
    }

    fn about(&self) -> About {
        let Description { name, capability, multiprocessors, memory, clock, driver, compiler } =
            &self.description;
        let (major, minor) = capability;
        let mut versions = format!(
            "driver for CUDA {}.{}, NVRTC {}.{}",
            driver / 1000,
            driver % 1000 / 10,
            compiler.0,
            compiler.1
        );
        for library in [Library::CublasLt, Library::Cudnn, Library::Nccl] {
            versions += &library.version().map(|version| format!(", {version}")).unwrap_or_default();
        }
        About {
            name: name.clone(),
            summary: format!("{name} (compute capability {major}.{minor}, at most {} MHz)", clock / 1000),
            versions,
            capability: *capability,
            multiprocessors: *multiprocessors as usize,
            memory: *memory,
        }
    }

    fn new_group(&mut self) -> Result<GroupName, DeviceError> {
        Id::new().map(|id| id.0)
    }

    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError> {
        let Membership { name, place, size } = membership;
        if self.groups.is_empty() {
            self.compile()?;
        }
        let x = self.upload(&[0; 8])?;
        // Inserted before the wait, so that the wait sees its errors.
        self.groups.insert(group, Communicator::join(Id(name), place, size)?);
        let on = self.selected();
        let connected = self.groups[&group].connect(x, on).and_then(|()| self.finish_stream(on));
        connected.inspect_err(|_| self.abort())
    }

    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError> {
        let (group, on) = (&self.groups[&group], self.selected());
        match work {
            Collective::AllReduce { x, count } => group.all_reduce(x, count, number, on),
            Collective::ReduceScatter { from, to, count } => {
                group.reduce_scatter([from, to], count, number, on)
            }
            Collective::AllGather { from, to, count } => group.all_gather([from, to], count, number, on),
            Collective::Send { x, count } => group.send(x, count, number, group.other(), on),
            Collective::Receive { x, count } => group.receive(x, count, number, group.other(), on),
        }
    }

    fn capture(&mut self, recorded: &[Recorded]) -> Result<device::Graph, DeviceError> {
        let on = self.streams[0].0;
        let graph = Graph::capture(on, || self.with_separate_events(|gpu| enqueue(gpu, recorded)));
        // After an error any stream may be selected.
        self.selected = 0;
        graph.map(device::Graph::new)
    }

    fn replay(&mut self, graph: &device::Graph) -> Result<(), DeviceError> {
        self.selected = 0;
        graph.of::<Graph>().launch(&self.streams[0])
    }

    /// Waits for the copy, since other streams may read the memory next.
    fn upload(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let at = self.allocate(bytes.len())?;
        self.write(at, bytes)?;
        Device::finish(self)?;
        Ok(at)
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        Device::finish(self)?;
        // Its workspace is in the arena.
        self.products = None;
        for at in self.arena.clear() {
            // SAFETY: it was allocated here and is freed once.
            unsafe { result::free_sync(at.0) }.or_failed("cuMemFree")?;
        }
        self.pinned.clear();
        Ok(())
    }
}
