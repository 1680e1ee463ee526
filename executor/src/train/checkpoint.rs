//! Checkpoints that any plan can read: full tensors with Hugging Face's names, in safetensors.

mod content;
mod folder;
mod hugging_face;
mod names;
mod position_limit;
mod saving;
mod source;
mod tensors;

pub(crate) use content::content;
pub use folder::{abandon_checkpoints, last_checkpoint};
pub(crate) use folder::{last_folder, prepare, sweep};
pub use hugging_face::untrained;
pub use position_limit::PositionLimit;
pub(crate) use saving::{Inventory, Saver};
pub(crate) use source::Beginning;
pub use tensors::tensor_names;
