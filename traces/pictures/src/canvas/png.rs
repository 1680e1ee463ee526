//! A canvas as a PNG file.
//!
//! Everything is drawn `SAMPLES` times larger in each direction; the mean of the samples of a pixel smooths all edges.

use super::{Anchor, Canvas, Colour, DASH, Dash, Element, Font, Level, Path, Point, Text};
use plotters::backend::BitMapBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Rectangle};
use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{
    Color, FontStyle, IntoFont, IntoTextStyle, RGBColor, ShapeStyle, WHITE, register_font,
};
use std::sync::Once;

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
type Painted<'a> = Result<(), DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>>;

/// Samples of a pixel in each direction.
const SAMPLES: usize = 3;
/// From the baseline up to the middle of a capital letter, in heights of the font.
const MIDDLE: f64 = 0.36;
/// From the middle of the font's box up to that of its letters, most of which have no descender, in heights of the font.
const SINK: f64 = 1.0 / 7.0;

/// The picture as a file. The same canvas always gives the same bytes.
pub fn file(canvas: &Canvas) -> Vec<u8> {
    load_font();
    let (columns, rows) = (canvas.width.ceil() as usize, canvas.height.ceil() as usize);
    let (width, height) = (columns * SAMPLES, rows * SAMPLES);
    let mut samples = vec![255; 3 * width * height];
    let area = BitMapBackend::with_buffer(&mut samples, (width as u32, height as u32)).into_drawing_area();
    let painted = area.fill(&WHITE).and_then(|()| {
        canvas.elements.iter().try_for_each(|element| paint(&area, element))?;
        area.present()
    });
    painted.expect("drawing into memory with a registered font does not fail");
    drop(area);
    encode(&averaged(&samples, width), columns as u32, rows as u32)
}

/// Registers the font of bitmaps, which is part of the program: nothing is loaded from the system.
pub fn load_font() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let font = include_bytes!("../../fonts/DejaVuSans-subset.ttf");
        let loaded = register_font("sans-serif", FontStyle::Normal, font);
        assert!(loaded.is_ok(), "the font is part of the program");
    });
}

/// Width of a text in the font of bitmaps, in pixels.
pub fn text_width(text: &str, font: Font) -> f64 {
    load_font();
    let (width, _) = ("sans-serif", font.height).into_font().box_size(text).unwrap_or_default();
    f64::from(width)
}

fn paint<'a>(area: &Area<'a>, element: &Element) -> Painted<'a> {
    match element {
        Element::Rect([x, y, width, height], fill) => {
            // Corners are part of a rectangle.
            let (right, bottom) = place((x + width, y + height));
            let corners = [place((*x, *y)), (right - 1, bottom - 1)];
            area.draw(&Rectangle::new(corners, rgb(*fill).filled()))
        }
        Element::Path(path) => lines(area, path),
        Element::Circle(circle) => {
            let style: ShapeStyle = match circle.edge {
                Some(width) => rgb(circle.colour).stroke_width(samples(width) as u32),
                None => rgb(circle.colour).filled(),
            };
            area.draw(&Circle::new(place(circle.centre), samples(circle.radius), style))
        }
        Element::Text(text) => label(area, text),
        Element::OpenGroup(_) | Element::CloseGroup => Ok(()),
    }
}

fn lines<'a>(area: &Area<'a>, path: &Path) -> Painted<'a> {
    let stroke = rgb(path.stroke).stroke_width(samples(path.width) as u32);
    for line in &path.lines {
        let places: Vec<(i32, i32)> = line.iter().copied().map(place).collect();
        if let Some(fill) = path.fill {
            area.draw(&Polygon::new(places.clone(), rgb(fill).filled()))?;
        }
        match (path.dash, places.as_slice()) {
            (Dash::Dashed, [(left, y), (right, _)]) => {
                let dash = samples(DASH);
                for start in (*left..*right).step_by(2 * dash as usize) {
                    let ends = vec![(start, *y), ((start + dash).min(*right), *y)];
                    area.draw(&PathElement::new(ends, stroke))?;
                }
            }
            _ => {
                for part in without_sharp_corners(&places) {
                    area.draw(&PathElement::new(part.to_vec(), stroke))?;
                }
            }
        }
    }
    Ok(())
}

/// Parts of a line that end where it turns back sharply: there the drawn corner would reach far beyond the point. The limit
/// is that of SVG, whose miter has at most 4 times the stroke's width: sin(θ/2) ≥ 1/4, so cos θ ≤ 7/8, of the angle θ
/// between both sides.
fn without_sharp_corners(places: &[(i32, i32)]) -> Vec<&[(i32, i32)]> {
    let is_sharp = |three: &[(i32, i32)]| {
        let side = |end: (i32, i32)| (f64::from(end.0 - three[1].0), f64::from(end.1 - three[1].1));
        let (one, other) = (side(three[0]), side(three[2]));
        one.0 * other.0 + one.1 * other.1 > 0.875 * libm::hypot(one.0, one.1) * libm::hypot(other.0, other.1)
    };
    let (mut parts, mut start) = (Vec::new(), 0);
    for (before, _) in places.windows(3).enumerate().filter(|(_, three)| is_sharp(three)) {
        parts.push(&places[start..before + 2]);
        start = before + 1;
    }
    parts.push(&places[start..]);
    parts
}

fn label<'a>(area: &Area<'a>, text: &Text) -> Painted<'a> {
    let across = match text.anchor {
        Anchor::Start => HPos::Left,
        Anchor::Middle => HPos::Center,
        Anchor::End => HPos::Right,
    };
    let height = text.font.height;
    let (up, down) = match text.level {
        Level::Top => (VPos::Top, 0.0),
        // Rounded down to a sample.
        Level::Middle => (VPos::Center, (height * SINK * SAMPLES as f64).floor() / SAMPLES as f64),
        Level::Baseline => (VPos::Center, height * (SINK - MIDDLE)),
        Level::Bottom => (VPos::Bottom, 0.0),
    };
    let style = ("sans-serif", samples(height)).into_font().color(&rgb(text.colour)).into_text_style(area);
    let (x, y) = text.place;
    area.draw_text(&text.text, &style.pos(Pos::new(across, up)), place((x, y + down)))
}

/// A length in samples.
fn samples(length: f64) -> i32 {
    (length * SAMPLES as f64).round() as i32
}

fn place((x, y): Point) -> (i32, i32) {
    (samples(x), samples(y))
}

fn rgb(Colour([red, green, blue]): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

/// Each pixel as the mean of its samples; `width` is in samples.
fn averaged(samples: &[u8], width: usize) -> Vec<u8> {
    let (columns, rows) = (width / SAMPLES, samples.len() / 3 / width / SAMPLES);
    let mut means = Vec::with_capacity(3 * columns * rows);
    for (row, column, channel) in
        (0..rows).flat_map(|row| (0..columns).flat_map(move |column| (0..3).map(move |c| (row, column, c))))
    {
        let sample = |index: usize| {
            let (y, x) = (row * SAMPLES + index / SAMPLES, column * SAMPLES + index % SAMPLES);
            u32::from(samples[3 * (y * width + x) + channel])
        };
        let count = SAMPLES * SAMPLES;
        means.push(((0..count).map(sample).sum::<u32>() / count as u32) as u8);
    }
    means
}

fn encode(pixels: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels));
    written.expect("memory takes a picture whose size is known");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_they_turn_back() {
        let check = |places: &[(i32, i32)], lengths: &[usize]| {
            let parts: Vec<usize> = without_sharp_corners(places).iter().map(|part| part.len()).collect();
            assert_eq!(parts, lengths, "{places:?}");
        };
        check(&[(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)], &[5]);
        // A peak of 10 · 2: cos θ = (100 − 1) / 101.
        check(&[(0, 0), (10, 0), (11, 10), (12, 0), (20, 0)], &[3, 3]);
        // 45°: cos θ = 0.71.
        check(&[(0, 0), (10, 0), (0, 10)], &[3]);
        check(&[(0, 0), (10, 0)], &[2]);
        check(&[], &[0]);
    }
}
