//! One GPU: its memory, streams, events and kernels.

use super::communicator::{Communicator, Id};
use super::failed;
use super::graph::Graph;
use super::library::Library;
use super::product::Products;
use crate::cuda::arena::Arena;
use crate::cuda::cache_folder;
use crate::cuda::collective::{Collective, GroupName, Membership};
use crate::cuda::eight::{EightOperands, EightProduct};
use crate::cuda::launch::{self, Address, Device, DeviceError, Launch, Moment, Number};
use crate::cuda::product::{Operands, Product};
use crate::cuda::recorder::{Told, tell};
use crate::cuda::source::{FILES, File};
use cudarc::driver::result::{self, event, function, module, primary_ctx, stream};
use cudarc::driver::sys;
use cudarc::nvrtc;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The oldest driver whose functions are all there that this program calls.
const OLDEST_DRIVER: i32 = 12_080;

/// Bytes that are read at a time.
const STAGED: usize = 4 << 20;

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// As the driver names it.
    pub name: String,
    /// Compute capability: 9.0 is (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Bytes of memory.
    pub memory: usize,
    /// Of its multiprocessors at most, in kHz.
    pub clock: i32,
    /// The driver's CUDA version: 13000 is 13.0.
    pub driver: i32,
    /// NVRTC's version.
    pub compiler: (i32, i32),
}

/// Work in order. What is on different streams has no order but by events.
#[derive(Debug)]
pub struct Stream(pub(super) sys::CUstream);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone. Work on it goes on.
        let _ = unsafe { stream::destroy(self.0) };
    }
}

/// A moment on a stream.
#[derive(Debug)]
pub struct Event(sys::CUevent);

impl Event {
    /// Milliseconds from an earlier one to this one, both of which are waited for.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32, DeviceError> {
        // SAFETY: both are events that nobody destroyed.
        unsafe {
            event::synchronize(self.0).map_err(|error| failed("cuEventSynchronize", error))?;
            event::elapsed(earlier.0, self.0).map_err(|error| failed("cuEventElapsedTime", error))
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone.
        let _ = unsafe { event::destroy(self.0) };
    }
}

// SAFETY: events are the driver's, whose functions any thread may call.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// Host memory that the GPU copies from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    at: *mut u8,
    bytes: usize,
}

impl Pinned {
    /// Its bytes. Whoever copies into it on a stream waits for the stream before looking.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it was allocated with that size and is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it is freed here alone.
        let _ = unsafe { result::free_host(self.at.cast::<c_void>()) };
    }
}

/// A GPU that this thread uses.
#[derive(Debug)]
pub struct Gpu {
    device: sys::CUdevice,
    description: Description,
    /// By their numbers; the first one is there from the beginning.
    streams: Vec<Stream>,
    /// Which of them is told what comes next.
    selected: usize,
    functions: HashMap<String, sys::CUfunction>,
    modules: Vec<(&'static str, sys::CUmodule)>,
    arena: Arena,
    /// Memory of the host.
    pinned: Vec<Pinned>,
    /// Once one was asked for.
    products: Option<Products>,
    /// What is read passes through it.
    staging: Option<Pinned>,
    /// By number.
    groups: BTreeMap<usize, Communicator>,
    marks: Vec<Event>,
}

impl Gpu {
    /// How many there are; an error that says what is missing if there is none.
    pub fn count() -> Result<usize, DeviceError> {
        Library::Driver.require()?;
        result::init().map_err(|error| DeviceError::NoGpu(format!("cuInit: {error:?}")))?;
        let mut version = 0;
        // SAFETY: it writes one number.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(|error| failed("cuDriverGetVersion", error))?;
        if version < OLDEST_DRIVER {
            let found = format!("{}.{}", version / 1000, version % 1000 / 10);
            return Err(DeviceError::OldDriver { found, needed: "12.8" });
        }
        match result::device::get_count() {
            Ok(count) if count > 0 => Ok(count as usize),
            Ok(_) => Err(DeviceError::NoGpu("cuDeviceGetCount: 0".into())),
            Err(error) => Err(DeviceError::NoGpu(format!("cuDeviceGetCount: {error:?}"))),
        }
    }

    /// What tells one of them from all others, wherever they are.
    pub fn name(index: usize) -> Result<[u8; 16], DeviceError> {
        let device = result::device::get(index as i32).map_err(|error| failed("cuDeviceGet", error))?;
        let name = result::device::get_uuid(device).map_err(|error| failed("cuDeviceGetUuid", error))?;
        Ok(name.bytes.map(|byte| byte as u8))
    }

    /// Opens one of them.
    pub fn open(index: usize) -> Result<Self, DeviceError> {
        let count = Self::count()?;
        if index >= count {
            return Err(DeviceError::NoGpu(format!("number {index} of {count}, counted from 0")));
        }
        Library::Nvrtc.require()?;
        let device = result::device::get(index as i32).map_err(|error| failed("cuDeviceGet", error))?;
        // SAFETY: the device is one that the driver named, and its primary context is given back when this is dropped.
        unsafe {
            let context =
                primary_ctx::retain(device).map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
            result::ctx::set_current(context).map_err(|error| failed("cuCtxSetCurrent", error))?;
        }
        let description = describe(device)?;
        let streams = vec![new_stream()?];
        let (functions, modules, arena) = (HashMap::new(), Vec::new(), Arena::default());
        Ok(Self {
            device,
            description,
            streams,
            selected: 0,
            functions,
            modules,
            arena,
            pinned: Vec::new(),
            products: None,
            staging: None,
            groups: BTreeMap::new(),
            marks: Vec::new(),
        })
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The stream that is told what comes next.
    pub fn selected(&self) -> &Stream {
        &self.streams[self.selected]
    }

    /// Another stream.
    pub fn stream(&self) -> Result<Stream, DeviceError> {
        new_stream()
    }

    /// The moment when all is done that is on a stream now, with its time.
    pub fn event(&self, on: &Stream) -> Result<Event, DeviceError> {
        self.event_with(sys::CUevent_flags::CU_EVENT_DEFAULT, on)
    }

    fn event_with(&self, flags: sys::CUevent_flags, on: &Stream) -> Result<Event, DeviceError> {
        let made = event::create(flags).map_err(|error| failed("cuEventCreate", error))?;
        let made = Event(made);
        // SAFETY: both are alive.
        unsafe { event::record(made.0, on.0) }.map_err(|error| failed("cuEventRecord", error))?;
        Ok(made)
    }

    /// Lets what comes next on a stream wait for a moment of another one.
    pub fn wait(&self, on: &Stream, event: &Event) -> Result<(), DeviceError> {
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        unsafe { stream::wait_event(on.0, event.0, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|error| failed("cuStreamWaitEvent", error))
    }

    /// Waits for all that is on a stream.
    pub fn finish_stream(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: it is alive.
        unsafe { stream::synchronize(on.0) }.map_err(|error| failed("cuStreamSynchronize", error))
    }

    /// New host memory that copies use without a detour.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, DeviceError> {
        // Flags 0: not write-combined, which would make reading it slow.
        // SAFETY: bytes may hold anything.
        let at = unsafe { result::malloc_host(bytes.max(1), 0) }
            .map_err(|error| failed("cuMemHostAlloc", error))?;
        Ok(Pinned { at: at.cast::<u8>(), bytes })
    }

    /// Copies within the GPU's memory.
    pub fn copy_on(&self, to: Address, from: Address, bytes: usize, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: the caller's addresses have that many bytes, as for any kernel.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, on.0) }
            .map_err(|error| failed("cuMemcpyDtoDAsync", error))
    }

    /// Copies host memory to the GPU.
    pub fn copy_in(&self, to: Address, from: &mut Pinned, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: pinned memory stays where it is; the caller waits for the stream before changing or dropping it.
        unsafe { result::memcpy_htod_async(to.0, from.bytes(), on.0) }
            .map_err(|error| failed("cuMemcpyHtoDAsync", error))
    }

    /// Copies the GPU's memory to the host.
    pub fn copy_out(&self, to: &mut Pinned, from: Address, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: as for `copy_in`.
        unsafe { result::memcpy_dtoh_async(to.bytes(), from.0, on.0) }
            .map_err(|error| failed("cuMemcpyDtoHAsync", error))
    }

    /// Runs a kernel on a stream, compiling its file if it is the first of it.
    pub fn launch_on(&mut self, launch: &Launch, on: &Stream) -> Result<(), DeviceError> {
        self.launch_raw(launch, on.0)
    }

    fn launch_raw(&mut self, launch: &Launch, on: sys::CUstream) -> Result<(), DeviceError> {
        let found = match self.functions.get(&launch.kernel) {
            Some(found) => *found,
            None => self.load(launch)?,
        };
        let [x, y, z] = launch.grid;
        let mut parameters = [launch.arguments.as_ptr().cast_mut().cast::<c_void>()];
        let block = (launch.block, 1, 1);
        // SAFETY: the kernel takes one struct, whose layout `arguments` has, and the driver copies it before it returns.
        unsafe { result::launch_kernel(found, (x, y, z), block, launch.shared, on, &mut parameters) }
            .map_err(|error| failed(&format!("launch of {}", launch.kernel), error))
    }

    /// Compiles all kernel files now.
    pub fn compile(&mut self) -> Result<(), DeviceError> {
        FILES.iter().try_for_each(|file| self.module(file.name).map(drop))
    }

    fn load(&mut self, launch: &Launch) -> Result<sys::CUfunction, DeviceError> {
        let name = CString::new(launch.kernel.as_str()).expect("kernels' names have no zeros");
        let loaded = self.module(launch.file)?;
        // SAFETY: the module stays loaded as long as this GPU is open.
        let found = unsafe { module::get_function(loaded, name) }
            .map_err(|error| failed(&format!("cuModuleGetFunction of {}", launch.kernel), error))?;
        // A block has 48 KiB of shared memory unless more is asked for.
        if launch.shared > 48 * 1024 {
            let size = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            unsafe { function::set_function_attribute(found, size, launch.shared as i32) }
                .map_err(|error| failed(&format!("{} bytes of shared memory", launch.shared), error))?;
        }
        self.functions.insert(launch.kernel.clone(), found);
        Ok(found)
    }

    fn module(&mut self, name: &str) -> Result<sys::CUmodule, DeviceError> {
        if let Some((_, loaded)) = self.modules.iter().find(|(loaded, _)| *loaded == name) {
            return Ok(*loaded);
        }
        let file = FILES.iter().find(|file| file.name == name).expect("launches name their files");
        let (major, minor) = self.description.capability;
        let image = compiled(file, &format!("sm_{major}{minor}"))?;
        // SAFETY: the compiler made it.
        let loaded = unsafe { module::load_data(image.as_ptr().cast()) }
            .map_err(|error| failed(&format!("cuModuleLoadData of {name}"), error))?;
        self.modules.push((file.name, loaded));
        Ok(loaded)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A collective that a member has not come to would be waited for without end.
        // SAFETY: the streams are alive.
        let is_idle =
            |stream: &Stream| unsafe { sys::cuStreamQuery(stream.0) } == sys::CUresult::CUDA_SUCCESS;
        if !self.groups.is_empty() && !self.streams.iter().all(is_idle) {
            std::mem::take(&mut self.groups).into_values().for_each(Communicator::abort);
        }
        let _ = self.clear();
        self.groups.clear();
        self.marks.clear();
        self.streams.clear();
        self.staging = None;
        // SAFETY: nothing of the modules and the context is used after this.
        unsafe {
            for (_, loaded) in &self.modules {
                let _ = module::unload(*loaded);
            }
            let _ = primary_ctx::release(self.device);
        }
    }
}

impl Device for Gpu {
    fn select(&mut self, stream: usize) -> Result<(), DeviceError> {
        while self.streams.len() <= stream {
            self.streams.push(new_stream()?);
        }
        self.selected = stream;
        Ok(())
    }

    fn moment(&mut self) -> Result<Moment, DeviceError> {
        Ok(Moment::new(self.event_with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING, self.selected())?))
    }

    fn wait(&mut self, moment: &Moment) -> Result<(), DeviceError> {
        Gpu::wait(self, self.selected(), moment.of())
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

    fn wait_here(&mut self, moment: &Moment) -> Result<(), DeviceError> {
        // SAFETY: it is an event that nobody destroyed.
        unsafe { event::synchronize(moment.of::<Event>().0) }
            .map_err(|error| failed("cuEventSynchronize", error))
    }

    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let has = |own: &&mut Pinned| (own.at as u64..own.at as u64 + own.bytes as u64).contains(&at.0);
        let own = self.pinned.iter_mut().find(has).expect("the host sees memory that was allocated for it");
        let first = (at.0 - own.at as u64) as usize;
        work(&mut own.bytes()[first..first + bytes]);
        Ok(())
    }

    /// The driver has read the host's bytes when it returns: they are not pinned, so it copies them to memory that is.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's address has that many bytes.
        unsafe { result::memcpy_htod_async(to.0, bytes, self.selected().0) }
            .map_err(|error| failed("cuMemcpyHtoDAsync", error))
    }

    /// By way of memory that the GPU copies to by itself: other streams go on meanwhile.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let mut staging = match self.staging.take() {
            Some(staging) => staging,
            None => self.pinned(STAGED)?,
        };
        for (part, to) in bytes.chunks_mut(STAGED).enumerate() {
            let read = &mut staging.bytes()[..to.len()];
            // SAFETY: the caller's address has that many bytes, and the stream is waited for before anyone looks.
            unsafe { result::memcpy_dtoh_async(read, from.after(part * STAGED).0, self.selected().0) }
                .map_err(|error| failed("cuMemcpyDtoHAsync", error))?;
            self.finish_stream(self.selected())?;
            to.copy_from_slice(read);
        }
        self.staging = Some(staging);
        Ok(())
    }

    /// Addresses tell where they are: those of pinned memory are of the same space.
    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's addresses have that many bytes, as for any kernel.
        unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes, self.selected().0) }
            .result()
            .map_err(|error| failed("cuMemcpyAsync", error))
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's address has that many bytes.
        unsafe { result::memset_d8_async(at.0, 0, bytes, self.selected().0) }
            .map_err(|error| failed("cuMemsetD8Async", error))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.launch_raw(launch, self.selected().0)
    }

    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError> {
        let mut products = match self.products.take() {
            Some(products) => products,
            None => Products::new(self)?,
        };
        let done = products.multiply(product, at, self.selected());
        self.products = Some(products);
        done
    }

    fn multiplies_eight(&self) -> bool {
        self.description.capability >= (8, 9)
    }

    fn multiply_eight(&mut self, product: EightProduct, at: EightOperands) -> Result<(), DeviceError> {
        let mut products = match self.products.take() {
            Some(products) => products,
            None => Products::new(self)?,
        };
        let done = products.multiply_eight(product, at, self.selected());
        self.products = Some(products);
        done
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.streams.iter().try_for_each(|stream| self.finish_stream(stream))
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        let now = self.event(self.selected())?;
        self.marks.push(now);
        Ok(())
    }

    fn marks(&mut self) -> Result<Vec<f64>, DeviceError> {
        let marks = std::mem::take(&mut self.marks);
        let Some(first) = marks.first() else { return Ok(Vec::new()) };
        marks.iter().map(|mark| Ok(f64::from(mark.milliseconds_since(first)?) * 1e-3)).collect()
    }

    fn about(&self) -> [String; 2] {
        let Description { name, capability: (major, minor), driver, compiler, clock, .. } = &self.description;
        let versions = format!(
            "driver for CUDA {}.{}, NVRTC {}.{}",
            driver / 1000,
            driver % 1000 / 10,
            compiler.0,
            compiler.1
        );
        [format!("{name} (compute capability {major}.{minor}, at most {} MHz)", clock / 1000), versions]
    }

    fn new_group(&mut self) -> Result<GroupName, DeviceError> {
        Id::new().map(|id| id.0)
    }

    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError> {
        let Membership { name, place, size } = membership;
        self.groups.insert(group, Communicator::join(Id(name), place, size)?);
        Ok(())
    }

    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError> {
        let (group, on) = (&self.groups[&group], self.selected());
        match work {
            Collective::AllReduce { x, count } => group.all_reduce(x, count, number, on),
            Collective::ReduceScatter { from, to, count } => {
                group.reduce_scatter([from, to], count, number, on)
            }
            Collective::AllGather { from, to, count } => group.all_gather([from, to], count, number, on),
        }
    }

    fn make_ready(&mut self, told: &[Told]) -> Result<launch::Graph, DeviceError> {
        let on = self.streams[0].0;
        Ok(launch::Graph::new(Graph::record_on(self, on, |gpu| tell(gpu, told))?))
    }

    fn replay(&mut self, graph: &launch::Graph) -> Result<(), DeviceError> {
        self.selected = 0;
        graph.of::<Graph>().launch(&self.streams[0])
    }

    /// Other streams may read it next, so it is waited for.
    fn upload(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let at = self.allocate(bytes.len())?;
        self.write(at, bytes)?;
        Device::finish(self)?;
        Ok(at)
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        Device::finish(self)?;
        // Their workspace is among the memory.
        self.products = None;
        for at in self.arena.clear() {
            // SAFETY: it was allocated here and is freed once.
            unsafe { result::free_sync(at.0) }.map_err(|error| failed("cuMemFree", error))?;
        }
        self.pinned.clear();
        Ok(())
    }
}

fn new_stream() -> Result<Stream, DeviceError> {
    // It does not wait for the default stream, nor that for it.
    let made =
        stream::create(stream::StreamKind::NonBlocking).map_err(|error| failed("cuStreamCreate", error))?;
    Ok(Stream(made))
}

fn describe(device: sys::CUdevice) -> Result<Description, DeviceError> {
    use sys::CUdevice_attribute::*;
    let ask = |attribute| {
        // SAFETY: the device is open.
        unsafe { result::device::get_attribute(device, attribute) }
            .map_err(|error| failed("cuDeviceGetAttribute", error))
    };
    let (mut driver, mut major, mut minor) = (0, 0, 0);
    // SAFETY: each writes the numbers it is given, and the device is open.
    let memory = unsafe {
        sys::cuDriverGetVersion(&mut driver).result().map_err(|error| failed("cuDriverGetVersion", error))?;
        nvrtc::sys::nvrtcVersion(&mut major, &mut minor)
            .result()
            .map_err(|error| failed("nvrtcVersion", error))?;
        result::device::total_mem(device).map_err(|error| failed("cuDeviceTotalMem", error))?
    };
    Ok(Description {
        name: result::device::get_name(device).map_err(|error| failed("cuDeviceGetName", error))?,
        capability: (
            ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock: ask(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory,
        driver,
        compiler: (major, minor),
    })
}

/// Machine code by file and architecture.
type Images = BTreeMap<(&'static str, String), Arc<Vec<u8>>>;

/// As `compile`, once for all threads, which may share a GPU, and kept on disk for later runs: the compiler takes seconds.
fn compiled(file: &File, architecture: &str) -> Result<Arc<Vec<u8>>, DeviceError> {
    static IMAGES: Mutex<Images> = Mutex::new(BTreeMap::new());
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (file.name, architecture.to_owned());
    if let Some(known) = images.get(&key) {
        return Ok(Arc::clone(known));
    }
    let kept = kept_image(file, architecture);
    let image = match kept.as_ref().and_then(|path| std::fs::read(path).ok()) {
        Some(known) => known,
        None => {
            let made = compile(file, architecture)?;
            if let Some(path) = &kept {
                // Without it the next run compiles again.
                let _ = keep(path, &made);
            }
            made
        }
    };
    let image = Arc::new(image);
    images.insert(key, Arc::clone(&image));
    Ok(image)
}

/// Where the machine code of a file is kept: known by its text, the architecture and the compiler.
fn kept_image(file: &File, architecture: &str) -> Option<PathBuf> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    let mut hasher = DefaultHasher::new();
    (file.whole(), major, minor).hash(&mut hasher);
    let name = format!("{}-{architecture}-{:016x}.cubin", file.name, hasher.finish());
    Some(cache_folder()?.join("kernels").join(name))
}

/// Written under another name first: what has its name is whole.
fn keep(path: &Path, image: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().expect("it is in a folder"))?;
    let draft = path.with_extension(std::process::id().to_string());
    std::fs::write(&draft, image)?;
    std::fs::rename(draft, path)
}

/// Machine code of a file for an architecture, `sm_90` or the like.
fn compile(file: &File, architecture: &str) -> Result<Vec<u8>, DeviceError> {
    use nvrtc::result::{compile_program, create_program, destroy_program, get_program_log};
    let text = CString::new(file.whole()).expect("kernel files have no zeros");
    let program = create_program(&text, None).map_err(|error| failed("nvrtcCreateProgram", error))?;
    let options =
        [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()];
    // SAFETY: the program is destroyed once, at the end.
    unsafe {
        let made = match compile_program(program, &options) {
            Ok(()) => machine_code(program),
            Err(error) => {
                let log = get_program_log(program).unwrap_or_default();
                let log: Vec<u8> = log.iter().map(|byte| *byte as u8).collect();
                let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
                let log = log.unwrap_or_default();
                let log = if log.is_empty() { format!("{error:?}") } else { log };
                Err(DeviceError::Compile { file: file.name, architecture: architecture.into(), log })
            }
        };
        let _ = destroy_program(program);
        made
    }
}

/// SAFETY: the program was compiled.
unsafe fn machine_code(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, DeviceError> {
    let mut size = 0;
    // SAFETY: the caller's promise, and the buffer has the size that the compiler asks for.
    unsafe {
        nvrtc::sys::nvrtcGetCUBINSize(program, &mut size)
            .result()
            .map_err(|error| failed("nvrtcGetCUBINSize", error))?;
        let mut code = vec![0u8; size];
        nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast())
            .result()
            .map_err(|error| failed("nvrtcGetCUBIN", error))?;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_compiles_where_the_compiler_is() {
        if let Err(error) = Library::Nvrtc.require() {
            println!("skipped: {error}");
            return;
        }
        for file in FILES {
            assert!(!compile(&file, "sm_80").unwrap().is_empty(), "{}", file.name);
        }
        let wrong = File { name: "wrong", text: "KERNEL(wrong, 32, Nothing) {}" };
        let error = compile(&wrong, "sm_80").unwrap_err().to_string();
        // The compiler names the file and its line.
        assert!(error.contains("wrong.cu(1): error"), "{error}");
    }
}
