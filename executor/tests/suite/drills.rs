//! Ranks that die, hang or get NaN, under plans of the whole grid: the run ends soon, names the rank, and can be resumed.

use crate::drafts::{Draft, settings, tokens};
use crate::grid::drafts;
use crate::long::cases;
use std::fs;
use std::num::NonZeroUsize;
use std::time::Duration;
use trainwright_executor::{Drill, DrillKind, Fault, Outcome, RunError, Saving, Settings, Start, train};

/// What comes of a fault on a rank in step 3, before some op below 300 that the rank has.
fn faulty(draft: &Draft, saving: &Saving, kind: DrillKind, random: u64) -> (Drill, RunError) {
    let plan = draft.plan();
    let ranks = plan.mesh.ranks() as u64;
    let mut drill =
        Drill { rank: (random % ranks) as usize, step: 3, op: (random / ranks % 300) as usize, kind };
    // Short where it is waited for; elsewhere a machine that is busy with other things must not look like a stall.
    let patience = Duration::from_secs(if kind == DrillKind::Stall { 3 } else { 60 });
    loop {
        let ill = Settings { fault: Some(drill), patience, saving: Some(saving.clone()), ..settings(4) };
        match train(&plan, &tokens(), &ill, &mut |_| {}) {
            Err(error) => return (drill, error),
            Ok(_) => assert!(drill.op > 0, "{drill:?} of {draft:?} does not come"),
        }
        // The rank has fewer ops in a step. The checkpoints of a run that ended are not this one's.
        drill.op /= 2;
        fs::remove_dir_all(&saving.folder).unwrap();
    }
}

/// Faults of each kind in turn: three, 200 in long tests; `TRAINWRIGHT_DRILLS` asks for another number.
#[test]
fn whatever_happens_to_a_rank_of_any_plan_the_run_ends_and_can_be_resumed() {
    let all: Vec<Draft> = ["gpt", "llama", "mixtral"].into_iter().flat_map(drafts).collect();
    let steps = |draft: &Draft, start: Start| -> Outcome {
        train(&draft.plan(), &tokens(), &Settings { start, ..settings(4) }, &mut |_| {}).unwrap()
    };
    for number in 0..cases("TRAINWRIGHT_DRILLS", 3, 200) as u64 {
        // Anything that spreads well over plans, ranks and ops will do.
        let random = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
        let draft = &all[(random % all.len() as u64) as usize];
        let kinds = [DrillKind::Death, DrillKind::Stall, DrillKind::NotANumber];
        let kind = kinds[(number % 3) as usize];
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("checkpoints");
        let saving =
            Saving { folder: folder.clone(), every: Some(NonZeroUsize::MIN), keep: NonZeroUsize::MIN };
        let (drill, error) = faulty(draft, &saving, kind, random >> 8);
        let what = format!("{drill:?} of {draft:?}");
        match (&error, kind) {
            (RunError::Rank { rank: named, step: 3, op, fault }, DrillKind::Death) => {
                assert!(*named == drill.rank && *fault == Fault::Panic("a drill".into()), "{what}: {error}");
                assert!(op != "start", "{what}: {error}");
            }
            (RunError::Rank { rank: named, step: 3, fault: Fault::Stalled(_), .. }, DrillKind::Stall) => {
                assert!(*named == drill.rank, "{what}: {error}");
            }
            (RunError::Rank { step: 3, fault: Fault::NotFinite { .. }, .. }, DrillKind::NotANumber) => {}
            _ => panic!("{what}: {error}"),
        }
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        // The rank may be in step 3 before the checkpoint of step 2 is written.
        assert!(names == ["step-00000002"] || names == ["step-00000001"], "{what}: {names:?}");
        let rest = steps(draft, Start::Resume(folder));
        assert_eq!(rest.weights, steps(draft, Start::default()).weights, "{what}");
    }
}
