//! Ranks that die, hang or get NaN: the run ends soon, names the rank, and can be resumed.

use crate::drafts::{Draft, settings, tokens};
use crate::long::cases;
use std::fs;
use std::num::NonZeroUsize;
use std::time::Duration;
use trainwright_executor::{Drill, DrillKind, Fault, RunError, Saving, Settings, Start, train};

#[test]
fn whatever_happens_to_a_rank_the_run_ends_and_can_be_resumed() {
    let plan = Draft { mesh: [2, 2, 1], optimizer: "adamw", ..Draft::of("gpt") }.plan();
    let uninterrupted = train(&plan, &tokens(), &settings(4), &mut |_| {}).unwrap();
    // Each kind at least once.
    for number in 0..cases("TRAINWRIGHT_DRILLS", 3, 5) as u64 {
        // Anything that spreads well over ranks and ops will do.
        let random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let kinds = [DrillKind::Death, DrillKind::Stall, DrillKind::NotANumber];
        let kind = kinds[(number % 3) as usize];
        let (rank, op) = ((random % 4) as usize, (random / 4 % 300) as usize);
        let folder = tempfile::tempdir().unwrap();
        let saving =
            Saving { folder: folder.path().into(), every: Some(NonZeroUsize::MIN), keep: NonZeroUsize::MIN };
        let drill = Drill { rank, step: 3, op, kind };
        // Short where it is waited for; elsewhere a machine that is busy with other things must not look like a stall.
        let patience = Duration::from_secs(if kind == DrillKind::Stall { 3 } else { 60 });
        let ill = Settings { fault: Some(drill), patience, saving: Some(saving), ..settings(4) };
        let error = train(&plan, &tokens(), &ill, &mut |_| {}).unwrap_err();
        match (&error, kind) {
            (RunError::Rank { rank: named, step: 3, op, fault }, DrillKind::Death) => {
                assert!(*named == rank && *fault == Fault::Panic("a drill".into()), "{drill:?}: {error}");
                assert!(op != "start", "{error}");
            }
            (RunError::Rank { rank: named, step: 3, fault: Fault::Stalled(_), .. }, DrillKind::Stall) => {
                assert!(*named == rank, "{drill:?}: {error}");
            }
            (RunError::Rank { step: 3, fault: Fault::NotFinite { .. }, .. }, DrillKind::NotANumber) => {}
            _ => panic!("{drill:?}: {error}"),
        }
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["step-00000002"], "{drill:?}");
        let rest = Settings { start: Start::Resume(folder.path().into()), ..settings(4) };
        let rest = train(&plan, &tokens(), &rest, &mut |_| {}).unwrap();
        assert_eq!(rest.weights, uninterrupted.weights, "{drill:?}");
    }
}
