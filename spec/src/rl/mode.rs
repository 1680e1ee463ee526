//! How the phases of a loop share GPUs and time.

/// Which phases run on the same GPUs, and which at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// All phases on all GPUs, one after the other. State of training leaves the GPUs while the engine runs, if `offload`.
    Colocated {
        /// Whether training's state goes to the host's memory during generation and back after it.
        offload: bool,
    },
    /// Generation on GPUs of its own, in turns with training.
    Disaggregated,
    /// The same; training takes the answers in so many parts as they are complete, while the engine makes the others.
    Streamed {
        /// Into how many parts a step is cut.
        parts: usize,
    },
    /// The same; the engine answers the next step's prompts while this step is trained on.
    OneStepOff,
    /// The same; the engine does not wait for its longest answer: those that are not complete go on with new weights, as long
    /// as no sample is older than a bound.
    Async {
        /// How many steps older than the trained weights a sample's may be.
        staleness: f64,
    },
}

impl Mode {
    /// Its name in arguments and tables.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Colocated { .. } => "colocated",
            Mode::Disaggregated => "disaggregated",
            Mode::Streamed { .. } => "streamed",
            Mode::OneStepOff => "one-step-off",
            Mode::Async { .. } => "async",
        }
    }

    /// Whether generation has GPUs of its own.
    pub fn splits_gpus(self) -> bool {
        !matches!(self, Mode::Colocated { .. })
    }
}
