//! Which coefficients count for a call: those of its kernel on its generation of GPUs, or of the likest that was measured.

use super::parts::us;
use super::{Call, Chip, Parts};
use thiserror::Error;
use trainwright_spec::library::{FittedKernel, Library};
use trainwright_spec::units::Seconds;

/// A fit with a larger median error says nothing of its kernel: 1 is a factor of two.
const MOST_ERROR: f64 = 1.0;

/// The kernel that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Wanted<'a> {
    /// The library; `None`: the one with the most measurements.
    pub library: Option<&'a str>,
    /// Its kernel; `None`: the one with the most measurements.
    pub kernel: Option<&'a str>,
    /// The most that a call with nothing to do takes: of fits with a longer one, or that miss half of their own rows by more
    /// than a factor of two, one is taken only where there is no other. Host time that hides a kernel also hides from its fit
    /// how fast the kernel is. `None`: any.
    pub latency: Option<Seconds>,
}

/// A kernel's time, and the fit that it is from.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The time in its parts.
    pub time: Parts,
    /// Name of the library.
    pub library: String,
    /// The coefficients.
    pub fitted: FittedKernel,
}

/// Why a call has no estimate.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unknown {
    /// No kernel table has a number format of that name.
    #[error("{0} is no number format of a kernel table")]
    Format(String),
    /// The GPU's matrix units don't have the format.
    #[error("{gpu} lacks the number format {format}")]
    Units {
        /// The GPU.
        gpu: String,
        /// The format.
        format: &'static str,
    },
    /// A call over links of a GPU that has none.
    #[error("{gpu} lacks links to its peers")]
    Links {
        /// The GPU.
        gpu: String,
    },
    /// No library has a kernel that was measured.
    #[error("no measured kernel of the family {family} takes {format}")]
    Kernel {
        /// The family.
        family: &'static str,
        /// The format.
        format: &'static str,
    },
}

/// The time of a call with the catalog's coefficients.
///
/// # Errors
/// `Unknown`.
pub fn estimate(call: &Call, chip: &Chip, wanted: &Wanted) -> Result<Estimate, Unknown> {
    estimate_with(Library::all(), call, chip, wanted)
}

/// As `estimate`, with the given libraries.
///
/// # Errors
/// `Unknown`.
pub fn estimate_with(
    libraries: &[Library],
    call: &Call,
    chip: &Chip,
    wanted: &Wanted,
) -> Result<Estimate, Unknown> {
    let (library, fitted) = choose(libraries, call, chip, wanted).ok_or_else(|| unknown(call))?;
    let time = values(call, fitted).and_then(|coefficients| call.parts(chip, &coefficients));
    let time = time.ok_or_else(|| lacking(call, chip))?;
    Ok(Estimate { time, library: library.name.clone(), fitted: fitted.clone() })
}

/// The coefficients by which the catalog gives the time of calls of the same family and format on a chip.
///
/// # Errors
/// `Unknown`.
pub fn coefficients(call: &Call, chip: &Chip, wanted: &Wanted) -> Result<Vec<f64>, Unknown> {
    let chosen = choose(Library::all(), call, chip, wanted);
    chosen.and_then(|(_, fitted)| values(call, fitted)).ok_or_else(|| unknown(call))
}

/// The coefficients of every kernel of the likest library and generation, by the kernel's name.
///
/// # Errors
/// `Unknown`.
pub fn kernels(call: &Call, chip: &Chip, wanted: &Wanted) -> Result<Vec<(&'static str, Vec<f64>)>, Unknown> {
    let libraries = Library::all();
    let (library, likest) = choose(libraries, call, chip, wanted).ok_or_else(|| unknown(call))?;
    let is_alike = |fitted: &&FittedKernel| {
        (&fitted.family, &fitted.format, &fitted.on) == (&likest.family, &likest.format, &likest.on)
    };
    let alike = library.kernels.iter().filter(is_alike);
    let named = alike.filter_map(|fitted| Some((fitted.kernel.as_str(), values(call, fitted)?)));
    Ok(named.collect())
}

/// What a chip lacks that a call has no parts of its time on it.
pub(crate) fn lacking(call: &Call, chip: &Chip) -> Unknown {
    let gpu = chip.gpu.name.clone();
    match call {
        Call::AllReduce(_) | Call::Exchange(_) => Unknown::Links { gpu },
        _ => Unknown::Units { gpu, format: call.format() },
    }
}

fn unknown(call: &Call) -> Unknown {
    Unknown::Kernel { family: call.family().name, format: call.format() }
}

/// A fit's coefficients in the order of the family; `None` if it lacks one.
fn values(call: &Call, fitted: &FittedKernel) -> Option<Vec<f64>> {
    let value = |name: &str| fitted.coefficients.get(name).copied();
    call.family().coefficients.iter().map(|coefficient| value(coefficient.name)).collect()
}

/// The likest fit of the format: by latency, if one is wanted, library, generation and kernel; of equals the one with the most measurements.
///
/// A fit of another generation comes after the joint one of all, which the files name `any`.
fn choose<'a>(
    libraries: &'a [Library],
    call: &Call,
    chip: &Chip,
    wanted: &Wanted,
) -> Option<(&'a Library, &'a FittedKernel)> {
    let family = call.family().name;
    let generation = chip.generation().name();
    let candidates =
        libraries.iter().flat_map(|library| library.kernels.iter().map(move |fitted| (library, fitted)));
    let likeness = |&(library, fitted): &(&Library, &FittedKernel)| {
        let on = match fitted.on.as_str() {
            on if on == generation => 2,
            "any" => 1,
            _ => 0,
        };
        let is_of_gpu = wanted.latency.is_none_or(|most| {
            let latency = fitted.coefficients.get("latency").is_some_and(|latency| us(*latency) <= most);
            latency && fitted.median_error <= MOST_ERROR
        });
        let kernel = wanted.kernel.is_some_and(|kernel| kernel == fitted.kernel);
        let library = wanted.library.is_some_and(|wanted| wanted == library.name);
        (is_of_gpu, library && on > 0, on, kernel, library, fitted.kernel != "any", fitted.rows)
    };
    let suits =
        |&(_, fitted): &(&Library, &FittedKernel)| fitted.family == family && fitted.format == call.format();
    candidates.filter(suits).max_by_key(likeness)
}
