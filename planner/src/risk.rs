//! How much memory a plan may use and which time counts, by what is known of the errors of its kind's forecasts.
//!
//! A plan may use R = min(M, M / q_m) − h, so that it fits with the probability that is asked for, or R = M − reserve − h. Plans
//! are ordered by t q_t.
//!
//! M memory of a GPU, h what others hold of it, q_m the quantile of measured over forecast memory at that probability, t the forecast step time, q_t the
//! expected ratio of measured to forecast time (`Distribution::expected`) or a quantile of it. Both ratios depend on a
//! plan's kind alone, that is on the question and its mesh: a bound of t times q_t is a bound of what is compared.

use std::sync::Arc;
use trainwright_spec::calibration::ranges::Distribution;
use trainwright_spec::calibration::residuals::{Kind, Quantity, Residuals};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How a question weighs the errors of forecasts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Risk {
    /// Of the calibration that the question's numbers have. Without any, forecasts are taken as they are.
    pub residuals: Arc<Residuals>,
    /// Which part of a GPU's memory plans may use.
    pub memory: MemoryLimit,
    /// What others hold of each GPU's memory all the time.
    pub held: Bytes,
    /// Where the state of training is between steps, while others use the GPUs; `None` if they are its own.
    pub idle: Option<Idle>,
    /// Which time plans are ordered by.
    pub order: Order,
}

/// The state of training between steps, with that of other models of the same layout.
///
/// On a GPU it needs w W + t (G + S) + others, on a node's host the sum of w W + t S over its ranks.
///
/// W weights, G gradients, S optimizer state of a rank, w models, t of them trained. On the host gradients are left out: they are
/// made anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Idle {
    /// Where it is.
    pub place: IdlePlace,
    /// How many models have such weights.
    pub models: f64,
    /// How many of them are trained.
    pub trained: f64,
}

/// Where state is between steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum IdlePlace {
    /// On the GPUs, of whose memory others then need this much.
    Gpu(Bytes),
    /// In the memory of the nodes' hosts, where the catalog knows that.
    Host,
}

impl Idle {
    /// What others need of a GPU while its state stays there; `None` if the state leaves it.
    pub(crate) fn beside(&self) -> Option<Bytes> {
        match self.place {
            IdlePlace::Gpu(others) => Some(others),
            IdlePlace::Host => None,
        }
    }

    /// What of a rank's state stays on its GPU, if it does.
    pub(crate) fn on_gpu(&self, weights: Bytes, gradients: Bytes, optimizer: Bytes) -> Bytes {
        self.models * weights + self.trained * (gradients + optimizer)
    }

    /// What of a rank's state goes to its host, if it does.
    pub(crate) fn on_host(&self, weights: Bytes, optimizer: Bytes) -> Bytes {
        self.models * weights + self.trained * optimizer
    }
}

/// Which part of a GPU's memory plans may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryLimit {
    /// As much as exceeds the memory with this probability: above 0, below 1.
    Risk(f64),
    /// All but this.
    Reserve(Bytes),
}

impl Default for MemoryLimit {
    /// One plan in twenty.
    fn default() -> Self {
        Self::Risk(0.05)
    }
}

/// Which time plans are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Order {
    /// The expected time.
    #[default]
    Expected,
    /// The time that this fraction of steps stays below: above 0, below 1.
    Quantile(f64),
}

/// What is known of the forecasts of one kind of plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outlook {
    /// q_t.
    pub time: f64,
    /// The ends of the 80 % range of measured over forecast time.
    pub range: (f64, f64),
    /// How many sources resemble this kind.
    pub alike: f64,
    /// The part of a GPU's memory that may be used, before what is reserved or held by others.
    part: f64,
    reserve: Bytes,
    /// Where state is between steps.
    pub idle: Option<Idle>,
}

impl Outlook {
    pub fn new(risk: &Risk, kind: &Kind) -> Self {
        let known = |quantity| Distribution::of_kind(&risk.residuals, quantity, kind);
        let (part, reserve) = match risk.memory {
            MemoryLimit::Reserve(reserve) => (1.0, reserve),
            MemoryLimit::Risk(risk) => {
                let ratio = known(Quantity::Memory).map_or(1.0, |known| known.quantile(1.0 - risk));
                (1.0 / ratio.max(1.0), Bytes::ZERO)
            }
        };
        let reserve = reserve + risk.held;
        let Some(times) = known(Quantity::Time) else {
            return Self { time: 1.0, range: (1.0, 1.0), alike: 0.0, part, reserve, idle: risk.idle };
        };
        let time = match risk.order {
            Order::Expected => times.expected(),
            Order::Quantile(fraction) => times.quantile(fraction),
        };
        let range = times.range();
        let range = (range.low, range.high);
        Self { time, range, alike: times.alike(), part, reserve, idle: risk.idle }
    }

    /// How much of a GPU's memory may be used.
    pub fn room(&self, memory: Bytes) -> Bytes {
        memory * self.part - self.reserve
    }

    /// The time to order a plan by, from its forecast.
    pub fn expected(&self, forecast: Seconds) -> Seconds {
        forecast * self.time
    }

    /// The same, in the clock of the simulator; exact where forecasts are taken as they are.
    pub fn expected_exactly(&self, forecast: Picoseconds) -> Picoseconds {
        if self.time == 1.0 { forecast } else { Picoseconds::from(self.expected(Seconds::from(forecast))) }
    }

    /// How much of the 80 % ranges of two plans is common to both: the overlap over the union.
    pub fn overlap((one, forecast): (Self, Seconds), (other, other_forecast): (Self, Seconds)) -> f64 {
        let ends = |outlook: Self, time: Seconds| (time * outlook.range.0, time * outlook.range.1);
        let ((low, high), (other_low, other_high)) = (ends(one, forecast), ends(other, other_forecast));
        let union = high.max(other_high) - low.min(other_low);
        let common = high.min(other_high) - low.max(other_low);
        if union > Seconds::ZERO { (common / union).max(0.0) } else { 0.0 }
    }
}
