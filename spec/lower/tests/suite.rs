//! The tests of lowering, as one program.

mod kept_by_stacks;
mod matrices;
mod mixers;
mod program;
mod stack_habits;
