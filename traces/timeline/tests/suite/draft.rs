//! Timelines by hand.

use trainwright_spec::program::{MemoryKind, Pass, Stream};
use trainwright_spec::schedule::{Action, ActionKind};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::timeline::{Activity, CallTrack, MemoryChange, RankTrack, Span, Timeline};

/// 1F1B, 3 stages, 4 microbatches, F = 1, B = 2.
pub const ONE_F_ONE_B: &str = "\
rank 0 | F0 F1 F2 .. .. .. .. B0 == F3 B1 == .. B2 == .. B3 ==
rank 1 | .. F0 F1 .. .. B0 == F2 B1 == F3 B2 == .. B3 == .. ..
rank 2 | .. .. F0 B0 == F1 B1 == F2 B2 == F3 B3 == .. .. .. ..
";

/// A timeline in the making: spans and memory changes come in any order, times in picoseconds.
#[derive(Default)]
pub struct Draft(Timeline);

impl Draft {
    /// Ranks as (rank, stands for, pipeline rank).
    pub fn new(ranks: &[(usize, usize, usize)]) -> Draft {
        let ranks = ranks
            .iter()
            .map(|&(rank, stands_for, pipeline_rank)| RankTrack { rank, stands_for, pipeline_rank })
            .collect();
        Draft(Timeline { ranks, ..Timeline::default() })
    }

    /// Opens a call, of an action such as `2F0` or of none; the spans that follow belong to it.
    pub fn call(&mut self, rank: usize, action: &str) -> &mut Draft {
        self.0.calls.push(CallTrack { rank, action: action.parse().ok() });
        self
    }

    /// Adds a span of the latest call; its pass is the action's, and outside of the actions the update.
    pub fn span(&mut self, stream: Stream, activity: Activity, start: u64, end: u64) -> &mut Draft {
        let pass = match self.action().map(|action| action.kind) {
            Some(ActionKind::Forward) => Pass::Forward,
            Some(ActionKind::Backward | ActionKind::Input | ActionKind::Weight) => Pass::Backward,
            None => Pass::Update,
        };
        self.span_of(pass, stream, activity, start, end)
    }

    /// Adds a span of the latest call and of some pass.
    pub fn span_of(
        &mut self,
        pass: Pass,
        stream: Stream,
        activity: Activity,
        start: u64,
        end: u64,
    ) -> &mut Draft {
        let label = format!("{} {}", pass.name(), self.0.spans.len());
        self.0.labels.push(label);
        self.0.spans.push(Span {
            rank: self.0.calls.last().unwrap().rank as u32,
            label: self.0.labels.len() as u32 - 1,
            call: self.0.calls.len() as u32 - 1,
            stream,
            pass,
            activity,
            start: Picoseconds(start),
            end: Picoseconds(end),
        });
        self
    }

    /// Adds a kernel of the latest call.
    pub fn compute(&mut self, start: u64, end: u64) -> &mut Draft {
        self.span(Stream::Compute, Activity::Compute, start, end)
    }

    /// Takes memory, or gives it back where `bytes` is negative.
    pub fn memory(&mut self, rank: usize, kind: MemoryKind, time: u64, bytes: f64) -> &mut Draft {
        let change =
            MemoryChange { rank: rank as u32, kind, time: Picoseconds(time), bytes: Bytes::new(bytes) };
        self.0.memory.push(change);
        self
    }

    /// Names the latest span.
    pub fn label(&mut self, label: &str) -> &mut Draft {
        *self.0.labels.last_mut().unwrap() = label.to_string();
        self
    }

    /// The timeline, which ends with its last span.
    pub fn finish(&mut self) -> Timeline {
        let timeline = &mut self.0;
        timeline.spans.sort_by_key(|span| (span.rank, span.stream, span.start));
        timeline.memory.sort_by_key(|change| (change.rank, change.time));
        timeline.duration = timeline.spans.iter().map(|span| span.end).max().unwrap_or_default();
        std::mem::take(timeline)
    }

    fn action(&self) -> Option<Action> {
        self.0.calls.last().unwrap().action
    }
}

/// The timeline that a drawing shows, a kernel for each action: the reverse of `draw` with one cell for each unit.
pub fn from_drawing(drawing: &str, unit: u64) -> Timeline {
    let rows: Vec<(usize, Vec<&str>)> = drawing
        .lines()
        .map(|line| {
            let (name, cells) = line.split_once('|').unwrap();
            (name.trim_start_matches("rank").trim().parse().unwrap(), cells.split_whitespace().collect())
        })
        .collect();
    let tracks: Vec<_> = rows.iter().enumerate().map(|(stage, &(rank, _))| (rank, 1, stage)).collect();
    let mut draft = Draft::new(&tracks);
    for (stage, (_, cells)) in rows.iter().enumerate() {
        let mut cell = 0;
        while cell < cells.len() {
            let goes_on =
                |text: &&&str| text.starts_with('=') || (text.starts_with('#') && cells[cell] == **text);
            let length = 1 + cells[cell + 1..].iter().take_while(goes_on).count();
            let (start, end) = (cell as u64 * unit, (cell + length) as u64 * unit);
            match cells[cell] {
                text if text.starts_with('.') => {}
                text if text.starts_with('#') => drop(draft.call(stage, "").compute(start, end)),
                text if text.starts_with(['F', 'B']) => {
                    draft.call(stage, &format!("{stage}{text}")).compute(start, end);
                }
                text => drop(draft.call(stage, text).compute(start, end)),
            }
            cell += length;
        }
    }
    draft.finish()
}
