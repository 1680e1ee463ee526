//! The tests of the simulator, as one program.

mod compute;
mod device_profiles;
mod flow_cases;
mod flows;
mod folding;
mod interference;
mod joint;
mod kernels;
mod network;
mod published;
mod rl;
mod schedules;
mod serving;
mod steps;
mod topology;
mod twin;
