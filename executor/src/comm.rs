//! How ranks communicate: transports that carry messages, collectives over them, and on GPUs the routes past the host.
//!
//! ```text
//! collective ─┬─ on the host ─► transport: mailboxes of one process, TCP, MPI
//!             ├─ on one GPU  ─► local_peers: buffers and events shared by the ranks of a process
//!             └─ NCCL        ─► nccl_pairs and the device's collectives
//! routes says which of the three some ranks take; heartbeat says which ranks still work
//! ```
//!
//! This folder is above `device`: it moves a device's tensors. Nothing in `device` knows of other ranks, and nothing here
//! knows of layers, parameters or steps of training.

pub(crate) mod collective;
pub(crate) mod drill;
pub(crate) mod heartbeat;
pub(crate) mod local_peers;
pub(crate) mod local_ranks;
pub(crate) mod members;
pub(crate) mod nccl_pairs;
pub(crate) mod routes;
pub(crate) mod transport;
