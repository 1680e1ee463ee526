//! One GPU: its memory, streams, events and kernels.

mod context;
mod description;
mod device_calls;
mod staging;

use super::answer::{OrFailed, failed};
use super::communicator::Communicator;
use super::cudnn::Cudnn;
use super::events::{EventPool, PooledEvent};
use super::handles::{Pinned, Priority, Stream};
use super::image::compiled;
use super::library::Library;
use super::product::Products;
use super::wait::poll;
use crate::cuda::arena::Arena;
use crate::cuda::device::{Device, StopFlag};
use crate::cuda::error::DeviceError;
use crate::cuda::launch::Launch;
use crate::cuda::source::FILES;
use cudarc::driver::result::{self, function, module};
use cudarc::driver::sys;
use description::{agree, capability, compiler_version, describe, driver_version, name, written};
use staging::Staging;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_void};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use description::Description;

/// The oldest driver whose functions are all there that this program calls.
const OLDEST_DRIVER: i32 = 12_080;

/// The first compute capability whose tensor cores multiply fp8.
const FP8_SINCE: (i32, i32) = (8, 9);

/// A GPU opened by this thread.
#[derive(Debug)]
pub struct Gpu {
    description: Description,
    /// By number; stream 0 exists from the beginning.
    streams: Vec<Stream>,
    /// The stream of the calls that follow.
    selected: usize,
    functions: HashMap<String, sys::CUfunction>,
    modules: Vec<(&'static str, sys::CUmodule)>,
    arena: Arena,
    /// Pinned memory of the host.
    pinned: Vec<Pinned>,
    /// `None` before the first product.
    products: Option<Products>,
    /// `None` before the first question; `Err` says why cuDNN can't be used.
    cudnn: Option<Result<Cudnn, String>>,
    /// `None` before the first `read` or `write`.
    staging: Option<Staging>,
    /// By the group's number.
    groups: BTreeMap<usize, Communicator>,
    events: EventPool,
    /// Events with time stamps, for marks.
    timed_events: EventPool,
    marks: Vec<PooledEvent>,
    /// Ends all waits of the host once it is set.
    stop: Option<StopFlag>,
}

/// How long dropping a GPU waits for its work.
const GRACE: Duration = Duration::from_secs(5);

impl Gpu {
    /// How many GPUs there are, at least one.
    ///
    /// # Errors
    /// What is missing: the driver, a recent one, or a GPU.
    pub fn count() -> Result<usize, DeviceError> {
        Library::Driver.require()?;
        result::init().map_err(|error| DeviceError::NoGpu(format!("cuInit: {error:?}")))?;
        let version = driver_version()?;
        if version < OLDEST_DRIVER {
            return Err(DeviceError::OldDriver { found: written(version), needed: "12.8" });
        }
        match result::device::get_count() {
            Ok(count) if count > 0 => Ok(count as usize),
            Ok(_) => Err(DeviceError::NoGpu("cuDeviceGetCount: 0".into())),
            Err(error) => Err(DeviceError::NoGpu(format!("cuDeviceGetCount: {error:?}"))),
        }
    }

    /// A GPU's unique identifier (UUID).
    pub fn name(index: usize) -> Result<[u8; 16], DeviceError> {
        let device = result::device::get(index as i32).or_failed("cuDeviceGet")?;
        let name = result::device::get_uuid(device).or_failed("cuDeviceGetUuid")?;
        Ok(name.bytes.map(|byte| byte as u8))
    }

    /// Refuses a GPU that does not multiply fp8.
    ///
    /// # Errors
    /// `NoFp8`, or those of the driver.
    pub fn require_fp8(index: usize) -> Result<(), DeviceError> {
        let device = result::device::get(index as i32).or_failed("cuDeviceGet")?;
        let capability = capability(device)?;
        match capability >= FP8_SINCE {
            true => Ok(()),
            false => Err(DeviceError::NoFp8 { gpu: name(device)?, capability }),
        }
    }

    /// Refuses a compiler whose kernels the driver cannot load: one of a later CUDA than the driver's.
    pub fn require_compiler() -> Result<(), DeviceError> {
        Library::Nvrtc.require()?;
        agree(driver_version()?, compiler_version()?)
    }

    /// Opens a GPU by its index.
    pub fn open(index: usize) -> Result<Self, DeviceError> {
        let count = Self::count()?;
        if index >= count {
            return Err(DeviceError::NoGpu(format!("number {index} of {count}, counted from 0")));
        }
        Self::require_compiler()?;
        let device = result::device::get(index as i32).or_failed("cuDeviceGet")?;
        context::enter(device)?;
        let description = describe(device)?;
        let streams = vec![Stream::new(Priority::Computes)?];
        let (functions, modules, arena) = (HashMap::new(), Vec::new(), Arena::default());
        Ok(Self {
            description,
            streams,
            selected: 0,
            functions,
            modules,
            arena,
            pinned: Vec::new(),
            products: None,
            cudnn: None,
            staging: None,
            groups: BTreeMap::new(),
            events: EventPool::new(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING),
            timed_events: EventPool::new(sys::CUevent_flags::CU_EVENT_DEFAULT),
            marks: Vec::new(),
            stop: None,
        })
    }

    /// Its properties.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The stream of the calls that follow.
    fn selected(&self) -> &Stream {
        &self.streams[self.selected]
    }

    /// Waits until a stream is idle.
    fn finish_stream(&self, on: &Stream) -> Result<(), DeviceError> {
        self.wait_until(|| on.is_idle())
    }

    /// Lets the host wait. An error aborts all communicators, so that the other ranks' kernels stop waiting for this one's.
    ///
    /// # Errors
    /// `Stopped` if the run ends meanwhile; `Communicator` if NCCL reports a failure, also right after the wait.
    fn wait_until(&self, is_over: impl FnMut() -> Result<bool, DeviceError>) -> Result<(), DeviceError> {
        let stops = || self.stop.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        let check = || if stops() { Err(DeviceError::Stopped) } else { self.check_groups() };
        poll(is_over, check).and_then(|()| self.check_groups()).inspect_err(|_| self.abort())
    }

    fn check_groups(&self) -> Result<(), DeviceError> {
        self.groups.values().try_for_each(Communicator::check)
    }

    /// Aborts all communicators.
    fn abort(&self) {
        self.groups.values().for_each(Communicator::abort);
    }

    /// Runs `work` with a new pool of events, since an event captured into a graph can't be reused outside of it.
    pub(super) fn with_separate_events<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let events = EventPool::new(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let before = std::mem::replace(&mut self.events, events);
        let done = work(self);
        self.events = before;
        done
    }

    /// New pinned host memory.
    fn pinned(&self, bytes: usize) -> Result<Pinned, DeviceError> {
        // Flags 0: not write-combined, which would make reading it slow.
        // SAFETY: bytes may hold anything.
        let at = unsafe { result::malloc_host(bytes.max(1), 0) }.or_failed("cuMemHostAlloc")?;
        Ok(Pinned { at: at.cast::<u8>(), bytes })
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

    /// Compiles all kernel files in parallel and loads all kernels.
    pub fn compile(&mut self) -> Result<(), DeviceError> {
        let architecture = &self.architecture();
        std::thread::scope(|scope| {
            let files =
                FILES.each_ref().map(|file| scope.spawn(move || compiled(file, architecture).map(drop)));
            files.into_iter().try_for_each(|file| file.join().expect("the compiler does not panic"))
        })?;
        FILES.iter().try_for_each(|file| load_all(self.module(file.name)?))
    }

    fn architecture(&self) -> String {
        let (major, minor) = self.description.capability;
        format!("sm_{major}{minor}")
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
        let image = compiled(file, &self.architecture())?;
        // SAFETY: the compiler made it.
        let loaded = unsafe { module::load_data(image.as_ptr().cast()) }
            .map_err(|error| failed(&format!("cuModuleLoadData of {name}"), error))?;
        self.modules.push((file.name, loaded));
        Ok(loaded)
    }
}

impl Gpu {
    /// Waits until all streams are idle, at most `GRACE`; whether they are.
    fn comes_to_rest(&self) -> bool {
        let is_idle = || self.streams.iter().try_fold(true, |all, stream| Ok(all && stream.is_idle()?));
        // A collective that a member never enqueues would run without end.
        if !self.groups.is_empty() && is_idle() != Ok(true) {
            self.abort();
        }
        let until = Instant::now() + GRACE;
        let check = || if Instant::now() > until { Err(DeviceError::Stopped) } else { Ok(()) };
        poll(is_idle, check).is_ok()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !self.comes_to_rest() {
            // Running kernels may use all of it, and freeing would wait for them: the end of the process frees it.
            std::mem::forget(std::mem::take(&mut self.pinned));
            std::mem::forget((self.staging.take(), self.products.take(), self.cudnn.take()));
            std::mem::forget(std::mem::take(&mut self.groups));
            return;
        }
        self.groups.clear();
        let _ = self.clear();
        self.cudnn = None;
        self.marks.clear();
        self.streams.clear();
        self.staging = None;
        for (_, loaded) in &self.modules {
            // SAFETY: nothing of it is used after this.
            let _ = unsafe { module::unload(*loaded) };
        }
    }
}

/// Loads all kernels of a module now. By default the driver loads each at its first launch.
fn load_all(module: sys::CUmodule) -> Result<(), DeviceError> {
    let mut count = 0;
    // SAFETY: the module is loaded; the first call writes one number, and the second one at most `count` functions.
    let functions = unsafe {
        sys::cuModuleGetFunctionCount(&mut count, module).result().or_failed("cuModuleGetFunctionCount")?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)
            .result()
            .or_failed("cuModuleEnumerateFunctions")?;
        functions
    };
    functions.into_iter().try_for_each(|function| {
        // SAFETY: it is one of the module's.
        unsafe { sys::cuFuncLoad(function) }.result().or_failed("cuFuncLoad")
    })
}
