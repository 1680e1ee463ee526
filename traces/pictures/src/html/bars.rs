//! Where time goes, a bar for each name.

use super::escape;
use crate::palette::{CURVES, Colour, Meaning};
use std::fmt::Write;
use trainwright_spec::program::{Axis, Stream};
use trainwright_spec::units::{Picoseconds, Seconds};
use trainwright_timeline::report::{Report, TimeShares};

/// How long bars are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarScale {
    /// The longer the time, the longer.
    Common,
    /// All equally long: each shows the parts of its time.
    Bar,
}

/// A bar of a breakdown.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its label.
    pub name: String,
    /// Its parts, from left to right.
    pub parts: Vec<Part>,
}

/// A part of a bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The use of the time.
    pub name: String,
    /// What it means, which sets its colour; without one it has a colour of its own among the bars of the page.
    pub meaning: Option<Meaning>,
    /// How much.
    pub time: Seconds,
}

impl Bar {
    /// The bar of a rank, or of the mean over ranks.
    pub fn of(name: String, shares: &TimeShares) -> Bar {
        let part = |name: String, meaning: Meaning, time: Picoseconds| Part {
            name,
            meaning: Some(meaning),
            time: Seconds::from(time),
        };
        let mut parts = vec![part("compute".into(), Meaning::Compute, shares.compute)];
        for axis in Axis::ALL {
            let time = shares.communication[axis as usize].exposed;
            parts.push(part(format!("exposed {}", axis.name()), Meaning::of_axis(axis), time));
        }
        for (stream, time) in Stream::OFFLOAD.iter().zip(shares.offload) {
            parts.push(part(format!("exposed {}", stream.name()), Meaning::Host, time.exposed));
        }
        parts.push(part("bubble".into(), Meaning::Wait, shares.bubble));
        parts.retain(|part| part.time > Seconds::ZERO);
        Bar { name, parts }
    }

    /// The bars of a report, one for each pipeline rank's first rank.
    pub fn of_ranks(report: &Report) -> Vec<Bar> {
        let mut ranks: Vec<_> = report.ranks.iter().collect();
        ranks.sort_by_key(|rank| (rank.pipeline_rank, rank.rank));
        ranks.dedup_by_key(|rank| rank.pipeline_rank);
        ranks
            .iter()
            .map(|rank| Bar::of(format!("pipeline rank {}", rank.pipeline_rank), &rank.time))
            .collect()
    }
}

/// The bars as a part of a page.
pub(super) fn bars(bars: &[Bar], scale: BarScale) -> String {
    let total = |bar: &Bar| bar.parts.iter().map(|part| part.time).sum::<Seconds>();
    let longest = bars.iter().map(total).fold(Seconds::ZERO, Seconds::max);
    let mut parts: Vec<&Part> = Vec::new();
    for part in bars.iter().flat_map(|bar| &bar.parts) {
        if parts.iter().all(|other| other.name != part.name) {
            parts.push(part);
        }
    }
    // The bubble comes last.
    parts.sort_by_key(|part| part.meaning == Some(Meaning::Wait));
    let colours: Vec<(&str, String)> =
        parts.iter().enumerate().map(|(index, part)| (part.name.as_str(), colour(part, index))).collect();
    let colour =
        |name: &str| colours.iter().find(|(other, _)| *other == name).map_or("", |(_, colour)| colour);
    let mut text = String::from("<div class=\"bars\">\n<p class=\"legend\">");
    for (name, colour) in &colours {
        let _ = write!(text, "<span><i style=\"background:{colour}\"></i>{}</span> ", escape(name));
    }
    text.push_str("</p>\n");
    for bar in bars {
        let _ = write!(text, "<div class=\"bar\"><b>{}</b><div>", escape(&bar.name));
        let full = match scale {
            BarScale::Common => longest,
            BarScale::Bar => total(bar),
        };
        for part in &bar.parts {
            let share = if full > Seconds::ZERO { 100.0 * (part.time / full) } else { 0.0 };
            let hint = format!("{}: {} ({:.1} %)", part.name, part.time, 100.0 * (part.time / total(bar)));
            let _ = write!(
                text,
                "<i style=\"width:{share:.3}%;background:{}\" title=\"{}\"></i>",
                colour(&part.name),
                escape(&hint)
            );
        }
        let _ = writeln!(text, "</div><em>{}</em></div>", total(bar));
    }
    text + "</div>\n"
}

/// The colour of what a part means; otherwise that of the curve with the part's number, lighter after all have been used.
/// Idle time takes the page's variable, which is dark on dark backgrounds.
fn colour(part: &Part, index: usize) -> String {
    match part.meaning {
        Some(Meaning::Wait) => "var(--idle)".into(),
        Some(meaning) => meaning.colour().css(),
        None => {
            let colours: Vec<Colour> = CURVES[..9].to_vec();
            let round = (index / colours.len()) as f64;
            colours[index % colours.len()].lighter(0.45 * round.min(2.0)).css()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_share_a_scale_or_have_one_each() {
        let part = |name: &str, time: f64| Part {
            name: name.into(),
            meaning: [("compute", Meaning::Compute), ("bubble", Meaning::Wait)]
                .into_iter()
                .find(|(known, _)| *known == name)
                .map(|(_, meaning)| meaning),
            time: Seconds::new(time),
        };
        let bar = |name: &str, parts: Vec<Part>| Bar { name: name.into(), parts };
        let both = [
            bar("one", vec![part("compute", 1.0), part("bubble", 1.0)]),
            bar("two", vec![part("compute", 4.0)]),
        ];
        assert!(bars(&both, BarScale::Bar).contains("width:50.000%;background:var(--idle)"));
        let text = bars(&both, BarScale::Common);
        assert!(text.contains("width:25.000%;background:#a9b8cc"));
        assert!(text.contains("width:25.000%;background:var(--idle)"));
        assert!(text.contains("width:100.000%"));
        assert!(text.contains("bubble: 1.00 s (50.0 %)"));
    }
}
