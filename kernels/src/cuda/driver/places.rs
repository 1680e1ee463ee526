//! Folders with NVIDIA's libraries that the system's loader does not search: those of the Python packages, and the toolkit's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A variable of the environment by its name.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where the toolkit's installer puts its libraries.
const TOOLKIT: &str = "/usr/local/cuda/lib64";

/// Where libraries may be, apart from the loader's folders.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Folders of Python packages, with or without NVIDIA's packages.
    pub site_packages: Vec<PathBuf>,
    /// Folders that may hold libraries.
    pub folders: Vec<PathBuf>,
}

impl Places {
    /// The places that an environment names. Python itself is not asked: starting it takes longer than looking into its folders.
    pub fn of(environment: Environment) -> Self {
        let mut site_packages = Vec::new();
        for prefix in prefixes(environment) {
            for lib in ["lib", "lib64"] {
                let versions = entries(&prefix.join(lib), |name| name.starts_with("python3"));
                let packages = |version: &PathBuf| {
                    ["site-packages", "dist-packages"].map(|packages| version.join(packages))
                };
                let found = versions.iter().flat_map(packages).filter(|folder| folder.is_dir());
                found.for_each(|folder| add(&mut site_packages, folder));
            }
        }
        let mut folders = Vec::new();
        for package in site_packages.iter().flat_map(|packages| entries(&packages.join("nvidia"), |_| true)) {
            Some(package.join("lib"))
                .filter(|lib| lib.is_dir())
                .into_iter()
                .for_each(|lib| add(&mut folders, lib));
        }
        folders.extend(Some(PathBuf::from(TOOLKIT)).filter(|folder| folder.is_dir()));
        Self { site_packages, folders }
    }

    /// The places of this process, looked up once.
    pub fn of_process() -> &'static Self {
        static PLACES: OnceLock<Places> = OnceLock::new();
        PLACES.get_or_init(|| Places::of(&|name| std::env::var_os(name)))
    }

    /// The first library with one of the names that the system's loader finds, else the first in `folders`.
    pub fn open(&self, names: &[&str]) -> Option<libloading::Library> {
        let in_folders =
            self.folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        let paths = names.iter().map(PathBuf::from).chain(in_folders);
        // SAFETY: loading one of NVIDIA's libraries runs its initialisers, which is what its use does anyway.
        paths.map(|path| unsafe { libloading::Library::new(path) }).find_map(Result::ok)
    }

    /// The folders as an error message lists them.
    pub fn written(&self) -> String {
        let all: Vec<String> = self.site_packages.iter().map(|folder| folder.display().to_string()).collect();
        match all.is_empty() {
            true => format!("{TOOLKIT} and nvidia/*/lib of Python's packages, of which there is no folder"),
            false => format!("{TOOLKIT} and nvidia/*/lib in {}", all.join(", ")),
        }
    }
}

/// Folders that contain a `lib` with Python's packages: of the active virtual environment, of each `python3` on the search path
/// and of what it is a link to, of Debian's pip, and of the user.
fn prefixes(environment: Environment) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        environment(name).into_iter().for_each(|folder| add(&mut prefixes, folder.into()));
    }
    let path = environment("PATH").unwrap_or_default();
    let pythons = std::env::split_paths(&path).map(|folder| folder.join("python3"));
    for python in pythons.filter(|python| python.is_file()) {
        let target = python.canonicalize().ok();
        for python in [Some(python), target].into_iter().flatten() {
            // PREFIX/bin/python3
            python
                .parent()
                .and_then(Path::parent)
                .into_iter()
                .for_each(|prefix| add(&mut prefixes, prefix.into()));
        }
    }
    add(&mut prefixes, "/usr/local".into());
    environment("HOME").into_iter().for_each(|home| add(&mut prefixes, Path::new(&home).join(".local")));
    prefixes.retain(|prefix| prefix.is_absolute());
    prefixes
}

fn add(all: &mut Vec<PathBuf>, one: PathBuf) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// The wanted entries of a folder, sorted; empty if it can't be read.
fn entries(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    /// A temporary folder, removed on drop.
    struct Temporary(PathBuf);

    impl Temporary {
        /// A new, empty folder.
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("trainwright-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder.canonicalize().unwrap())
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_of_nvidia_s_packages_are_found_without_python() {
        let root = Temporary::new("places");
        let lib = |prefix: &str, package: &str| root.0.join(prefix).join("nvidia").join(package).join("lib");
        let expected = [
            lib("venv/lib/python3.12/site-packages", "nccl"),
            lib("system/lib/python3/dist-packages", "cu13"),
            lib("system/lib/python3/dist-packages", "cublas"),
            lib("home/.local/lib/python3.11/site-packages", "cudnn"),
        ];
        expected.iter().for_each(|folder| create_dir_all(folder).unwrap());
        // A package without libraries, and a folder of no Python.
        create_dir_all(root.0.join("venv/lib/python3.12/site-packages/nvidia/nothing")).unwrap();
        create_dir_all(root.0.join("venv/lib/perl/site-packages/nvidia/nccl/lib")).unwrap();
        create_dir_all(root.0.join("system/bin")).unwrap();
        write(root.0.join("system/bin/python3"), "").unwrap();
        // As a separate environment whose Python is a link to the system's.
        create_dir_all(root.0.join("bin")).unwrap();
        std::os::unix::fs::symlink(root.0.join("system/bin/python3"), root.0.join("bin/python3")).unwrap();
        let environment = |name: &str| match name {
            "VIRTUAL_ENV" => Some(root.0.join("venv").into()),
            "PATH" => Some(root.0.join("bin").into()),
            "HOME" => Some(root.0.join("home").into()),
            _ => None,
        };
        let places = Places::of(&environment);
        let inside = |folder: &&PathBuf| folder.starts_with(&root.0);
        assert_eq!(
            places.folders.iter().filter(inside).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
        let written = places.written();
        assert!(written.contains("venv/lib/python3.12/site-packages, "), "{written}");
        assert!(written.contains("home/.local/lib/python3.11/site-packages"), "{written}");
        // Nothing is looked for relative to where the program runs.
        assert!(
            Places::of(&|_| Some("relative".into())).site_packages.iter().all(|folder| folder.is_absolute())
        );
    }
}
