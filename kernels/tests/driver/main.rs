//! The driver's part of the crate against libraries that stand in for NVIDIA's: which calls it makes, and in which order.
//!
//! They lie where Python's packages of NVIDIA have theirs, so that the search for them is tested too. Without a harness: the
//! environment is set before another thread is there, and the stand-in libraries count the calls of the process.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trainwright_kernels::cuda::attention::{Attention, Pass};
use trainwright_kernels::cuda::driver::{Gpu, Library};
use trainwright_kernels::cuda::{Address, Collective, Device, DeviceError, Membership, Number, Recorded};

/// A library that stands in for another one.
struct StandIn(libloading::Library);

impl StandIn {
    /// Compiles a file of this folder under a name into a folder, as one that calls itself `soname`, and loads it by its path.
    fn new(source: &str, to: &Path, soname: &str) -> Self {
        Self::compile(source, to, soname);
        // SAFETY: it does nothing when it is loaded.
        Self(unsafe { libloading::Library::new(to.join(soname)) }.unwrap())
    }

    fn compile(source: &str, to: &Path, soname: &str) {
        std::fs::create_dir_all(to).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver").join(source);
        let compiled = Command::new(compiler())
            .args(["-shared", "-fPIC", "-Wall", "-Werror", &format!("-Wl,-soname,{soname}"), "-o"])
            .args([&to.join(soname), &source])
            .status();
        assert!(compiled.unwrap().success(), "{} does not compile", source.display());
    }

    /// Calls a function of an integer.
    fn call(&self, name: &str, argument: c_int) -> c_int {
        // SAFETY: the functions that are called so take a number or nothing, and give a number or nothing.
        unsafe { self.0.get::<unsafe extern "C" fn(c_int) -> c_int>(name.as_bytes()).unwrap()(argument) }
    }

    /// How often a function was called.
    fn count(&self, name: &str) -> c_int {
        let name = CString::new(name).unwrap();
        // SAFETY: it takes a text and gives a number.
        unsafe {
            self.0.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"stand_in_count").unwrap()(
                name.as_ptr(),
            )
        }
    }
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// Whether the system's loader finds one of NVIDIA's libraries, which would come before what stands in for it.
fn is_real_one_there() -> bool {
    let names =
        ["libnccl.so.2", "libnccl.so", "libcudnn.so", "libcudnn.so.9", "libnvrtc.so", "libnvrtc.so.12"];
    // SAFETY: loading a library of NVIDIA's runs its initialisers, which any use does.
    names.iter().any(|name| unsafe { libloading::Library::new(*name) }.is_ok())
}

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() {
    if Command::new(compiler()).arg("--version").output().is_err() || is_real_one_there() {
        return println!("skipped: there is no C compiler, or NVIDIA's libraries are there");
    }
    let folder = std::env::temp_dir().join(format!("trainwright-stand-ins-{}", std::process::id()));
    let folder = Folder(folder);
    // SAFETY: no other thread is there.
    unsafe {
        std::env::set_var("VIRTUAL_ENV", &folder.0);
        std::env::set_var("XDG_CACHE_HOME", folder.0.join("cache"));
    }
    let package = |name: &str| folder.0.join("lib/python3.12/site-packages/nvidia").join(name).join("lib");
    // cudarc asks for this name first, so no driver that may be there is touched.
    let cuda = StandIn::new("cuda.c", &folder.0.join("driver"), "libcuda.so");
    StandIn::compile("nvrtc.c", &package("cuda_nvrtc"), "libnvrtc.so.12");
    StandIn::compile("cublaslt.c", &package("cublas"), "libcublasLt.so.12");
    StandIn::compile("nccl.c", &package("nccl"), "libnccl.so.2");
    StandIn::compile("cudnn.c", &package("cudnn"), "libcudnn.so.9");

    libraries_in_python_s_packages_are_found();
    // The same files, loaded by now.
    let open = |name: &str, file: &str| {
        // SAFETY: it does nothing when it is loaded.
        StandIn(unsafe { libloading::Library::new(package(name).join(file)) }.unwrap())
    };
    let (nccl, cudnn) = (open("nccl", "libnccl.so.2"), open("cudnn", "libcudnn.so.9"));
    streams_that_communicate_have_a_higher_priority(&cuda);
    events_are_used_again(&cuda);
    events_of_a_graph_are_not_used_again(&cuda);
    descriptors_of_cudnn_outlive_what_was_made_of_them(&cudnn);
    a_failure_of_nccl_ends_a_wait(&cuda, &nccl);
    a_run_that_ends_ends_a_wait(&cuda, &nccl);
    println!("7 checks of the driver's calls passed");
}

fn libraries_in_python_s_packages_are_found() {
    for library in Library::ALL {
        library.require().unwrap();
    }
    assert_eq!(Library::Nccl.version().as_deref(), Some("NCCL 2.27.3"));
    assert_eq!(Library::Cudnn.version().as_deref(), Some("cuDNN 9.10.2"));
    assert_eq!(Library::CublasLt.version().as_deref(), Some("cublasLt 12.9.1"));
}

fn streams_that_communicate_have_a_higher_priority(cuda: &StandIn) {
    let mut gpu = Gpu::open(0).unwrap();
    gpu.select(2).unwrap();
    gpu.select(1).unwrap();
    // The stand-in's priorities go from 0 to -5, the greatest.
    let made: Vec<c_int> = (0..4).map(|stream| cuda.call("stand_in_priority", stream)).collect();
    assert_eq!(made, [0, -5, -5, 99]);
}

fn events_are_used_again(cuda: &StandIn) {
    let made = || cuda.count("cuEventCreate") - cuda.count("cuEventDestroy_v2");
    let (before, recorded) = (cuda.count("cuEventCreate"), cuda.count("cuEventRecord"));
    let mut gpu = Gpu::open(0).unwrap();
    for _ in 0..1000 {
        let [one, other] = [gpu.record_event().unwrap(), gpu.record_event().unwrap()];
        gpu.wait(&one).unwrap();
        gpu.wait_on_host(&other).unwrap();
    }
    assert_eq!(cuda.count("cuEventRecord") - recorded, 2000);
    assert_eq!(cuda.count("cuEventCreate") - before, 2, "as many as were held at a time");
    let held = gpu.record_event().unwrap();
    drop(gpu);
    // Another rank may still wait for it.
    assert_eq!(made(), 2);
    drop(held);
    assert_eq!(made(), 0);
}

fn events_of_a_graph_are_not_used_again(cuda: &StandIn) {
    let mut gpu = Gpu::open(0).unwrap();
    drop(gpu.record_event().unwrap());
    let made = || ["cuEventCreate", "cuEventDestroy_v2"].map(|name| cuda.count(name));
    let [before, gone] = made();
    let at = gpu.allocate(64).unwrap();
    let recorded = [
        Recorded::Select(1),
        Recorded::Zero { at, bytes: 64 },
        Recorded::Event,
        Recorded::Select(0),
        Recorded::Wait(0),
    ];
    let graph = gpu.capture(&recorded).unwrap();
    // At the beginning, for the second stream; the one that was recorded; at the end of that stream.
    let [after, gone_after] = made();
    assert_eq!([after - before, gone_after - gone], [3, 3]);
    gpu.replay(&graph).unwrap();
    assert_eq!(cuda.count("cuGraphLaunch"), 1);
    drop(gpu.record_event().unwrap());
    assert_eq!(made()[0], after, "the one from before the graph");
    drop((graph, gpu));
    assert_eq!(["cuGraphExecDestroy", "cuGraphDestroy"].map(|name| cuda.count(name)), [1, 1]);
}

/// Causal attention of 4 heads of 64.
fn attention(gpu: &mut Gpu) -> Attention {
    let memory = gpu.allocate(1 << 20).unwrap();
    let at = |number: usize| memory.after(number << 17);
    let packed = Attention::packed([at(0), at(1)], [1, 4, 4, 64, 64], Number::Bf16);
    Attention { o: at(2), logarithms: at(3), o_gradient: at(4), dots: at(5), ..packed }
}

fn descriptors_of_cudnn_outlive_what_was_made_of_them(cudnn: &StandIn) {
    let mut gpu = Gpu::open(0).unwrap();
    let attention = attention(&mut gpu);
    for pass in [Pass::Forward, Pass::Forward] {
        assert_eq!(gpu.fuses(&attention, pass), Ok(4096));
        gpu.attend(&attention, pass, Address::NULL).unwrap();
    }
    assert_eq!(cudnn.count("cudnnBackendExecute"), 2);
    cudnn.call("stand_in_refuse", 1);
    let refused = gpu.attend(&attention, Pass::Forward, Address::NULL).unwrap_err().to_string();
    assert!(refused.contains("cudnnBackendExecute") && refused.contains("a stand-in's words"), "{refused}");
    cudnn.call("stand_in_refuse", 0);
    assert!(cudnn.call("stand_in_made", 0) > 40 && cudnn.call("stand_in_alive", 0) > 20);
    drop(gpu);
    let end = ["stand_in_alive", "stand_in_violations"].map(|name| cudnn.call(name, 0));
    assert_eq!((end, cudnn.count("cudnnDestroy")), ([0, 0], 1));
}

/// A GPU that has entered a group of two and begun a collective.
fn in_a_group() -> Gpu {
    let mut gpu = Gpu::open(0).unwrap();
    let name = gpu.new_group().unwrap();
    gpu.enter(7, Membership { name, place: 0, size: 2 }).unwrap();
    let x = gpu.allocate(64).unwrap();
    gpu.collective(7, Collective::AllReduce { x, count: 16 }, Number::F32).unwrap();
    gpu
}

fn a_failure_of_nccl_ends_a_wait(cuda: &StandIn, nccl: &StandIn) {
    let mut gpu = in_a_group();
    let destroyed = nccl.count("ncclCommDestroy");
    // The collective waits for a rank that is gone: NCCL knows, the stream does not.
    cuda.call("stand_in_busy", 1);
    nccl.call("stand_in_error", 6);
    let expected = "remote process exited: socketProgress: connection closed by 10.0.0.2";
    assert_eq!(gpu.finish(), Err(DeviceError::Communicator(expected.into())));
    // It is neither used again nor aborted a second time.
    cuda.call("stand_in_busy", 0);
    nccl.call("stand_in_error", 0);
    let x = gpu.allocate(64).unwrap();
    let again = gpu.collective(7, Collective::AllReduce { x, count: 16 }, Number::F32).unwrap_err();
    assert!(again.to_string().contains("was aborted"), "{again}");
    drop(gpu);
    assert_eq!([nccl.count("ncclCommAbort"), nccl.count("ncclCommDestroy") - destroyed], [1, 0]);
    // An error that is known only when the work is done.
    let mut gpu = in_a_group();
    nccl.call("stand_in_error", 6);
    assert!(matches!(gpu.finish(), Err(DeviceError::Communicator(_))));
    nccl.call("stand_in_error", 0);
    drop(gpu);
    assert_eq!([nccl.count("ncclCommAbort"), nccl.count("ncclCommDestroy") - destroyed], [2, 0]);
}

fn a_run_that_ends_ends_a_wait(cuda: &StandIn, nccl: &StandIn) {
    let (stop, aborted) = (Arc::new(AtomicBool::new(false)), nccl.count("ncclCommAbort"));
    let mut gpu = in_a_group();
    gpu.stop_when(Arc::clone(&stop));
    let event = gpu.record_event().unwrap();
    let bytes = gpu.upload(&[1; 64]).unwrap();
    assert_eq!(gpu.finish(), Ok(()));
    cuda.call("stand_in_busy", 1);
    stop.store(true, Ordering::Relaxed);
    let waits = [gpu.finish(), gpu.wait_on_host(&event), gpu.read(bytes, &mut [0; 64])];
    assert_eq!(waits, [const { Err(DeviceError::Stopped) }; 3]);
    cuda.call("stand_in_busy", 0);
    drop(gpu);
    assert_eq!(nccl.count("ncclCommAbort") - aborted, 1);
}
