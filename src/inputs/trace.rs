//! Measured steps: traces of PyTorch's profiler and exports of Nsight Systems, gzipped or not.

use super::bytes_up_to;
use crate::arguments::TraceArguments;
use crate::error::CliError;
use flate2::read::MultiGzDecoder;
use std::io::{self, Read};
use trainwright_formats::measured::MeasuredStep;
use trainwright_formats::nsight::{Choice, MAGIC};
use trainwright_formats::{kineto, nsight};

/// Larger than any trace of a few steps.
const MOST_BYTES: u64 = 4 << 30;

/// The first bytes of a gzip file.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The measured step in a file.
///
/// # Errors
/// `Reading`, or the trace's fault.
pub fn measured(arguments: &TraceArguments) -> Result<MeasuredStep, CliError> {
    let path = arguments.trace.as_str();
    let bytes = unzipped(bytes_up_to(MOST_BYTES, None, path)?, path)?;
    if bytes.starts_with(MAGIC) {
        let choice = Choice { device: arguments.device, precision: arguments.precision };
        return Ok(nsight::read(&bytes, path, choice)?);
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        let message = "neither JSON nor an SQLite database";
        let source = io::Error::new(io::ErrorKind::InvalidData, message);
        CliError::Reading { argument: None, path: path.into(), source }
    })?;
    Ok(kineto::read(&text, path)?)
}

fn unzipped(bytes: Vec<u8>, path: &str) -> Result<Vec<u8>, CliError> {
    if !bytes.starts_with(GZIP) {
        return Ok(bytes);
    }
    let failed = |source| CliError::Reading { argument: None, path: path.into(), source };
    let mut text = Vec::new();
    let size = MultiGzDecoder::new(bytes.as_slice()).take(MOST_BYTES + 1).read_to_end(&mut text);
    match size.map_err(failed)? as u64 > MOST_BYTES {
        true => Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 4 GiB unzipped"))),
        false => Ok(text),
    }
}
