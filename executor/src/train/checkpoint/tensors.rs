//! Files of tensors: safetensors, written one tensor after the other and read one at a time.

use super::names::Stored;
use crate::error::CheckpointError;
use crc32fast::Hasher;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

/// Bytes of the length that stands before the header.
const LENGTH: usize = 8;

/// A file that is being written: the header is there, the tensors follow in its order.
pub(crate) struct TensorWriter {
    path: PathBuf,
    file: BufWriter<File>,
    checksum: Hasher,
}

impl TensorWriter {
    /// A new file of f32 tensors with these names and shapes.
    pub fn new(path: &Path, tensors: &[(String, Vec<usize>)]) -> Result<Self, CheckpointError> {
        let mut at = 0;
        let infos = tensors.iter().map(|(name, shape)| {
            let start = at;
            at += 4 * shape.iter().product::<usize>();
            let info = TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (start, at) };
            (name.clone(), info)
        });
        let format = [("format".to_string(), "pt".to_string())];
        let metadata = Metadata::new(Some(format.into_iter().collect()), infos.collect())
            .expect("tensors stand one behind the other");
        let mut header = serde_json::to_vec(&metadata).expect("names and numbers are JSON");
        header.resize(header.len().next_multiple_of(LENGTH), b' ');
        let begins = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
        let create = || {
            let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
            file.write_all(&begins)?;
            Ok(file)
        };
        let file = create().map_err(|error| CheckpointError::write(path, &error))?;
        let mut checksum = Hasher::new();
        checksum.update(&begins);
        Ok(Self { path: path.into(), file, checksum })
    }

    /// The next tensor.
    pub fn add(&mut self, elements: &[f32]) -> Result<(), CheckpointError> {
        let mut write = || {
            let mut bytes = Vec::with_capacity(4 * elements.len());
            bytes.extend(elements.iter().flat_map(|element| element.to_le_bytes()));
            self.checksum.update(&bytes);
            self.file.write_all(&bytes)
        };
        write().map_err(|error| CheckpointError::write(&self.path, &error))
    }

    /// Puts everything on the disk. Returns the file's name and checksum.
    pub fn finish(self) -> Result<(String, String), CheckpointError> {
        let Self { path, file, checksum } = self;
        let finish = || file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all();
        finish().map_err(|error| CheckpointError::write(&path, &error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, format!("{:08x}", checksum.finalize())))
    }
}

/// One or several files of tensors.
#[derive(Debug)]
pub(crate) struct TensorReader {
    /// What was asked for: a file, or a folder of parts.
    path: PathBuf,
    /// By name: which file, and where in it the data begin.
    tensors: BTreeMap<String, Found>,
}

#[derive(Debug)]
struct Found {
    file: PathBuf,
    dtype: Dtype,
    shape: Vec<usize>,
    start: u64,
    length: usize,
}

/// The index of a model in several files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorReader {
    /// The tensors of a folder: those of `NAME.safetensors`, or of the files that `NAME.safetensors.index.json` lists.
    pub fn open(folder: &Path, name: &str) -> Result<Self, CheckpointError> {
        let single = folder.join(format!("{name}.safetensors"));
        let index = folder.join(format!("{name}.safetensors.index.json"));
        let mut files = vec![single.clone()];
        if !single.exists() && index.exists() {
            let text = fs::read(&index).map_err(|error| CheckpointError::read(&index, &error))?;
            let read: Index =
                serde_json::from_slice(&text).map_err(|error| CheckpointError::damaged(&index, error))?;
            let parts: BTreeSet<String> = read.weight_map.into_values().collect();
            files = parts.into_iter().map(|part| beside(&index, &part)).collect::<Result<_, _>>()?;
        }
        let mut tensors = BTreeMap::new();
        for file in &files {
            add_file(file, &mut tensors)?;
        }
        Ok(Self { path: if files.len() == 1 { single } else { folder.into() }, tensors })
    }

    /// Which of these names it has first; the first of them if none.
    fn spelling<'a>(&self, names: &'a [String]) -> &'a str {
        names.iter().find(|name| self.tensors.contains_key(*name)).unwrap_or(&names[0])
    }

    /// The elements of a tensor, under the first of the names that is there, in the order of the file.
    pub fn read(&self, names: &[String], stored: &Stored) -> Result<Vec<f32>, CheckpointError> {
        let name = self.spelling(names);
        let path = || self.path.display().to_string();
        let Some(found) = self.tensors.get(name) else {
            return Err(CheckpointError::Missing { path: path(), tensor: name.into() });
        };
        if found.shape != stored.shape() {
            return Err(CheckpointError::Shape {
                path: found.file.display().to_string(),
                tensor: name.into(),
                found: found.shape.clone(),
                expected: stored.shape(),
            });
        }
        let read = || {
            let mut file = File::open(&found.file)?;
            file.seek(SeekFrom::Start(found.start))?;
            let mut bytes = vec![0; found.length];
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| CheckpointError::read(&found.file, &error))?;
        let floats = match found.dtype {
            Dtype::F32 => floats(&bytes, f32::from_le_bytes),
            Dtype::BF16 => floats(&bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Dtype::F16 => floats(&bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::F64 => floats(&bytes, |bytes| f64::from_le_bytes(bytes) as f32),
            other => {
                return Err(CheckpointError::Differs {
                    path: found.file.display().to_string(),
                    key: name.into(),
                    value: other.to_string(),
                    allowed: "tensors may be F32, BF16, F16 and F64".into(),
                });
            }
        };
        Ok(floats)
    }
}

fn floats<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.chunks_exact(N).map(|bytes| number(bytes.try_into().expect("chunks are that long"))).collect()
}

/// The path of a file that another one names, in its folder and nowhere else.
///
/// # Errors
/// `Damaged` if the name leads out of the folder.
pub(super) fn beside(naming: &Path, name: &str) -> Result<PathBuf, CheckpointError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(naming.with_file_name(name)),
        _ => Err(CheckpointError::damaged(naming, format!("it names `{name}`, which is no file beside it"))),
    }
}

/// The names of the weights in a folder.
///
/// # Errors
/// A file that cannot be read or is no safetensors.
pub fn tensor_names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    Ok(TensorReader::open(folder, "model")?.tensors.into_keys().collect())
}

/// Adds what a file has, if nothing of it is missing.
fn add_file(path: &Path, tensors: &mut BTreeMap<String, Found>) -> Result<(), CheckpointError> {
    let read = |error: io::Error| CheckpointError::read(path, &error);
    let file = File::open(path).map_err(read)?;
    let size = file.metadata().map_err(read)?.len();
    let cut = |wanted: u64| {
        let reason = format!("it has {size} bytes and should have {wanted}: it was cut off");
        CheckpointError::damaged(path, reason)
    };
    let mut file = BufReader::new(file);
    let mut length = [0; LENGTH];
    file.read_exact(&mut length).map_err(|_| cut(LENGTH as u64))?;
    let length = u64::from_le_bytes(length);
    if length > size {
        return Err(cut(length.saturating_add(LENGTH as u64)));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|_| cut(length + LENGTH as u64))?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| CheckpointError::damaged(path, error))?;
    let data = length + LENGTH as u64;
    let end = data + metadata.data_len() as u64;
    if end != size {
        return Err(cut(end));
    }
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let found = Found {
            file: path.into(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            start: data + start as u64,
            length: end - start,
        };
        tensors.insert(name, found);
    }
    Ok(())
}
