//! What the colours of pictures and pages mean: one table for SVG, PNG and HTML.
//!
//! The first seven are of Okabe and Ito's palette. The others were chosen so that any two stay apart with the common
//! kinds of colour blindness; a test computes the distances. Colours of lines and text have a second value, for dark
//! backgrounds, which SVG documents and pages use when the reader's system is set to dark.

use std::fmt::Write;
use trainwright_spec::program::{Axis, Pass};
use trainwright_timeline::timeline::Activity;

/// Red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub [u8; 3]);

impl Colour {
    /// From 0xRRGGBB.
    const fn new(code: u32) -> Colour {
        Colour([(code >> 16) as u8, (code >> 8) as u8, code as u8])
    }

    /// As SVG and CSS write it.
    pub fn css(self) -> String {
        let Colour([red, green, blue]) = self;
        format!("#{red:02x}{green:02x}{blue:02x}")
    }

    /// Moved towards white: unchanged at 0, white at 1.
    pub fn lighter(self, lightness: f64) -> Colour {
        Colour(self.0.map(|part| (f64::from(part) + (255.0 - f64::from(part)) * lightness).round() as u8))
    }
}

/// What a rank does with its time, in the order in which shares of a box are stacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Kernels of forward.
    Forward,
    /// Kernels of forward that run again during backward.
    Recompute,
    /// Kernels of backward.
    Backward,
    /// Kernels of the half of backward that computes the gradients of weights, if the schedule splits backward.
    WeightGradient,
    /// Kernels of the optimizer.
    Update,
    /// Kernels of all passes together.
    Compute,
    /// Communication of ranks that share each layer.
    Tensor,
    /// Communication of ranks that share each sequence.
    Context,
    /// Tokens to experts and back.
    Expert,
    /// Gradients and weights between ranks with the same layers.
    Data,
    /// Messages between stages.
    Pipeline,
    /// Copies to and from the host, and work of its processors.
    Host,
    /// Neither computes nor communicates.
    Wait,
}

impl Meaning {
    /// Every meaning.
    pub const ALL: [Meaning; 13] = [
        Meaning::Forward,
        Meaning::Recompute,
        Meaning::Backward,
        Meaning::WeightGradient,
        Meaning::Update,
        Meaning::Compute,
        Meaning::Tensor,
        Meaning::Context,
        Meaning::Expert,
        Meaning::Data,
        Meaning::Pipeline,
        Meaning::Host,
        Meaning::Wait,
    ];

    /// Its name in legends.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Its colour.
    pub fn colour(self) -> Colour {
        Colour::new(self.entry().1)
    }

    fn entry(self) -> (&'static str, u32) {
        match self {
            Meaning::Forward => ("forward", 0x56b4e9),
            Meaning::Recompute => ("recompute", 0xf0e442),
            Meaning::Backward => ("backward", 0x009e73),
            Meaning::WeightGradient => ("weight gradients", 0xe69f00),
            Meaning::Update => ("update", 0xcc79a7),
            Meaning::Compute => ("compute", 0xa9b8cc),
            Meaning::Tensor => ("tensor communication", 0xd55e00),
            Meaning::Context => ("context communication", 0x9edc78),
            Meaning::Expert => ("expert communication", 0x872300),
            Meaning::Data => ("data communication", 0x0072b2),
            Meaning::Pipeline => ("pipeline communication", 0x4617c8),
            Meaning::Host => ("copies and host", 0x7c4676),
            Meaning::Wait => ("idle", 0xececec),
        }
    }

    /// Of a kernel of this pass.
    pub fn of_pass(pass: Pass) -> Meaning {
        match pass {
            Pass::Forward => Meaning::Forward,
            Pass::Recompute => Meaning::Recompute,
            Pass::Backward => Meaning::Backward,
            Pass::Update => Meaning::Update,
        }
    }

    /// Of communication over this axis of the mesh.
    pub fn of_axis(axis: Axis) -> Meaning {
        match axis {
            Axis::Tensor | Axis::TensorRow | Axis::TensorColumn | Axis::TensorDepth => Meaning::Tensor,
            Axis::Context | Axis::ContextInner | Axis::ContextOuter => Meaning::Context,
            Axis::ExpertTensor | Axis::Expert | Axis::ExpertInner | Axis::ExpertOuter => Meaning::Expert,
            Axis::ExpertData | Axis::Data | Axis::Shard | Axis::Replica | Axis::Mirror => Meaning::Data,
            Axis::Pipeline | Axis::Embedding => Meaning::Pipeline,
        }
    }

    /// Of what a stream does in this pass.
    pub fn of(activity: Activity, pass: Pass) -> Meaning {
        match activity {
            Activity::Compute => Meaning::of_pass(pass),
            Activity::Communication(axis) => Meaning::of_axis(axis),
            Activity::Copy(_) | Activity::Host => Meaning::Host,
            Activity::Wait => Meaning::Wait,
        }
    }
}

/// Colour of paper.
pub const PAPER: Colour = Colour::new(0xffffff);
/// Colour of text and of what is drawn like text.
pub const INK: Colour = Colour::new(0x222222);
/// Colour of secondary text and of axes.
pub const GREY: Colour = Colour::new(0x666666);
/// Colour of grids.
pub const GRID: Colour = Colour::new(0xe1e1e1);
/// Colour of the edges of panels.
pub const EDGE: Colour = Colour::new(0x787878);
/// Colour of the area below a curve of memory.
pub const AREA: Colour = Colour::new(0xdfe7f2);
/// Colour of a curve of memory.
pub const LINE: Colour = Colour::new(0x3b5b8c);
/// Colour of text inside coloured boxes, dark and light alike.
pub const ON_COLOUR: Colour = Colour::new(0x1a1a1a);

/// Colours of curves and sources, in this order; the first ones stay distinct with the common kinds of colour blindness.
pub const CURVES: [Colour; 10] = [
    Colour::new(0x005aaa),
    Colour::new(0xd95f02),
    Colour::new(0x1b9e77),
    Colour::new(0x9650aa),
    Colour::new(0xa6761d),
    GREY,
    Colour::new(0xe63c78),
    Colour::new(0x3cb4dc),
    Colour::new(0x78a000),
    INK,
];

/// What has another colour on dark backgrounds: its name in style sheets, light, dark.
const NEUTRALS: [(&str, Colour, Colour); 11] = [
    ("paper", PAPER, Colour::new(0x15181c)),
    ("ink", INK, Colour::new(0xe6e6e6)),
    ("grey", GREY, Colour::new(0xa3a9b0)),
    ("grid", GRID, Colour::new(0x343a41)),
    ("edge", EDGE, Colour::new(0x8b9198)),
    ("idle", Colour::new(0xececec), Colour::new(0x2b3036)),
    ("area", AREA, Colour::new(0x26364d)),
    ("line", LINE, Colour::new(0x8fb0e6)),
    ("first", CURVES[0], Colour::new(0x4d9de0)),
    ("limit", Colour::new(0xc0392b), Colour::new(0xff7b6b)),
    // Where a library draws the text.
    ("black", Colour::new(0x000000), Colour::new(0xe6e6e6)),
];

/// The start of a rule for readers whose system is set to dark.
const DARK: &str = "@media (prefers-color-scheme: dark)";

/// The `style` element of an SVG document: other colours on dark backgrounds, by the colours that stand in attributes.
pub fn svg_style() -> String {
    let mut rules = String::new();
    for (_, light, dark) in NEUTRALS {
        let (light, dark) = (light.css(), dark.css());
        let _ = write!(rules, "[fill=\"{light}\" i]{{fill:{dark}}}[stroke=\"{light}\" i]{{stroke:{dark}}}");
    }
    format!("<style>{DARK}{{{rules}}}</style>")
}

/// The variables of a page: `--ink`, …, and `--forward`, … with the first word of each meaning.
pub(crate) fn page_variables() -> String {
    let neutrals = |dark: bool| -> String {
        let colour = |(name, light, other): (&str, Colour, Colour)| {
            format!("--{name}: {}; ", if dark { other.css() } else { light.css() })
        };
        NEUTRALS.into_iter().map(colour).collect()
    };
    let (light, dark) = (neutrals(false), neutrals(true));
    format!(
        ":root {{ color-scheme: light dark; {}}}\n{DARK} {{ :root {{ {}}} }}\n",
        light.trim_start(),
        dark.trim_start()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linear light of a channel.
    fn linear(channel: u8) -> f64 {
        let part = f64::from(channel) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { libm::pow((part + 0.055) / 1.055, 2.4) }
    }

    /// CIELAB of linear sRGB under D65.
    fn lab([red, green, blue]: [f64; 3]) -> [f64; 3] {
        let x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047;
        let y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue;
        let z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883;
        let f = |t: f64| if t > 0.008856 { libm::cbrt(t) } else { 7.787 * t + 16.0 / 116.0 };
        [116.0 * f(y) - 16.0, 500.0 * (f(x) - f(y)), 200.0 * (f(y) - f(z))]
    }

    /// Colour vision: normal, and without red, green or blue cones (Machado, Oliveira and Fernandes 2009, severity 1).
    const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
        ("normal", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367322, 0.860646, -0.227968],
                [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255528, -0.076749, -0.178779],
                [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900],
            ],
        ),
    ];

    fn seen(colour: Colour, vision: &[[f64; 3]; 3]) -> [f64; 3] {
        let light = colour.0.map(linear);
        lab(vision.map(|row| {
            row.iter().zip(light).map(|(weight, part)| weight * part).sum::<f64>().clamp(0.0, 1.0)
        }))
    }

    /// The distance of two colours in CIELAB: 2.3 can just be told apart side by side.
    fn distance(a: Colour, b: Colour, vision: &[[f64; 3]; 3]) -> f64 {
        let (a, b) = (seen(a, vision), seen(b, vision));
        a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn any_two_meanings_stay_apart_with_every_kind_of_colour_vision() {
        for (index, a) in Meaning::ALL.iter().enumerate() {
            for b in &Meaning::ALL[index + 1..] {
                for (name, vision) in &VISIONS {
                    let apart = distance(a.colour(), b.colour(), vision);
                    assert!(apart > 10.0, "{a:?} and {b:?} with {name}: {apart:.1}");
                }
            }
        }
    }

    /// WCAG's ratio of contrast: text needs 4.5, what is drawn 3.
    fn contrast(a: Colour, b: Colour) -> f64 {
        let luminance = |colour: Colour| {
            let [red, green, blue] = colour.0.map(linear);
            0.2126 * red + 0.7152 * green + 0.0722 * blue
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_can_be_read_on_both_backgrounds() {
        let [paper, ..] = NEUTRALS;
        for (name, light, dark) in NEUTRALS {
            let needed = match name {
                "ink" | "grey" | "black" => 4.5,
                "edge" | "line" | "first" | "limit" => 3.0,
                _ => continue,
            };
            assert!(contrast(light, paper.1) >= needed, "{name} on light");
            assert!(contrast(dark, paper.2) >= needed, "{name} on dark");
        }
        // Numbers stand in boxes of actions.
        for meaning in [Meaning::Forward, Meaning::Recompute, Meaning::Backward, Meaning::WeightGradient] {
            assert!(contrast(meaning.colour(), ON_COLOUR) >= 4.5, "{meaning:?}");
        }
    }
}
