//! The tests of lowering, as one program.

mod kept_by_stacks;
mod mixers;
mod program;
mod stack_habits;
