//! Plans that the executor can carry out.

use trainwright_executor::DeviceKind;
use trainwright_planner::{Breadth, Question, Ranked, Verdict, plan};
use trainwright_spec::stack::Stack;

/// The stack that is the executor: its plans are those that can be run.
pub const STACK: &str = "trainwright";

/// That stack.
pub fn stack() -> Stack {
    Stack::from_name(STACK).expect("the executor's stack is in the catalog")
}

/// The fastest plan of a question that the executor runs on a device; `None` if there is none.
pub fn runnable(mut question: Question, device: DeviceKind) -> Option<Ranked> {
    // What the planner tries by itself may have parts that the executor does not run; the core has none for most models.
    [Breadth::Auto, Breadth::Core].into_iter().find_map(|breadth| {
        question.pins.breadth = breadth;
        // No legal plan, or none that fits.
        let Ok(Verdict::Found(found)) = plan(&question, &|_progress| {}) else { return None };
        found.ranked.into_iter().find(|ranked| device.check(&ranked.plan).is_ok())
    })
}
