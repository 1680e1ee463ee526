//! Pictures and pages: a timeline as SVG, PNG or HTML, curves of collectives and sweeps, forecasts against measurements.
//!
//! ```text
//! Timeline ─┬─► picture  the pipeline and its memory, as SVG or PNG
//!           └─► html     a page with all of it, which can be zoomed
//! curves   ───► plot     times and bandwidths by size, what-if sweeps, a training by step
//! points   ───► scatter  forecast against measured
//! jobs     ───► gantt    which job is on which GPUs when
//! ```
//!
//! The same input always gives the same bytes. Nothing here touches a terminal or a file.

mod axis;
mod canvas;
pub mod gantt;
pub mod html;
pub mod palette;
pub mod picture;
pub mod plot;
pub mod scatter;
