//! `profile`: the times of a GPU's kernels by shape, out of a trace.

use crate::arguments::ProfileArguments;
use crate::error::{CliError, Outcome};
use crate::{inputs, output};

/// Runs the command.
///
/// # Errors
/// Bad input, a trace without shapes, and files that cannot be read or written.
pub fn run(arguments: &ProfileArguments) -> Result<Outcome, CliError> {
    let path = &arguments.measured.trace;
    let measured = inputs::trace::measured(&arguments.measured)?;
    let Some(profile) = measured.profile(path) else {
        return Err(CliError::NoAnswer {
            reason: format!(
                "{path}: no kernel has a shape: record with record_shapes=True; for Nsight Systems inside \
                 torch.autograd.profiler.emit_nvtx(record_shapes=True), and say --precision"
            ),
        });
    };
    output::remark(&format!("{} calls of {} shapes", measured.kernels.len(), profile.kernels.len()));
    output::write("--out", &arguments.out, |out| {
        out.write_all(profile.to_csv(&arguments.gpu, [""; 2]).as_bytes())
    })?;
    Ok(Outcome::Done)
}
